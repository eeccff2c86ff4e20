// `lora show` has the whole configuration: whatever field of it a job sets, the output says.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <catch2/catch.hpp>

#include "tests/client/fakes.h"

namespace lorad::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Sets a field of one value to another one; returns how that looks.
std::string SetOne(Message* message, const FieldDescriptor* field, bool add) {
  const auto& as = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      add ? as.AddInt32(message, field, 173) : as.SetInt32(message, field, 173);
      return "173";
    case FieldDescriptor::CPPTYPE_UINT64:
      as.SetUInt64(message, field, 1739);
      return "1739";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      as.SetDouble(message, field, 0.375);
      return "0.375";
    case FieldDescriptor::CPPTYPE_BOOL:
      as.SetBool(message, field, !as.GetBool(*message, field));
      return "";
    case FieldDescriptor::CPPTYPE_STRING:
      add ? as.AddString(message, field, "another") : as.SetString(message, field, "another");
      return "another";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* last = field->enum_type()->value(field->enum_type()->value_count() - 1);
      as.SetEnum(message, field, last);
      return last->name();
    }
    default:
      FAIL("no value of this kind is made yet: " << field->full_name());
      return "";
  }
}

// Likewise of any field but a message.
std::vector<std::string> Set(Message* message, const FieldDescriptor* field) {
  if (!field->is_map()) return {SetOne(message, field, field->is_repeated())};
  Message* entry = message->GetReflection()->AddMessage(message, field);
  return {SetOne(entry, field->message_type()->map_key(), false),
          SetOne(entry, field->message_type()->map_value(), false)};
}

// As the service fills it in.
void Fill(Job& job) {
  job.set_base_model("small");
  job.set_training_dataset("rows");
  job.mutable_adapter()->set_rank(8);
  job.mutable_adapter()->set_alpha(8);
  job.mutable_adapter()->add_target_modules("q_proj");
  v1::AdapterModules& modules = *job.mutable_adapter()->add_modules();
  modules.set_target("q_proj");
  modules.set_rank(8);
  modules.set_alpha(8);
  v1::TrainingConfig& training = *job.mutable_training();
  training.set_epochs(1);
  training.set_batch_size(8);
  training.set_max_length(1024);
  training.set_overflow(v1::TrainingConfig::TRUNCATE);
  training.set_schedule(v1::TrainingConfig::LINEAR);
  training.set_train_on(v1::TrainingConfig::ASSISTANT);
  training.set_learning_rate(2e-4);
  training.set_shuffle(true);
  training.set_checkpoint_every_steps(50);
}

struct ShowFixture : Fixture {
  int fields = 0;

  // Each field of the message that `part` finds in a job.
  template <class Part>
  void CheckAll(Part part) {
    Job filled;
    filled.set_name("job-a");
    filled.set_validation_dataset("validation");  // without one nothing is evaluated
    Fill(filled);
    const auto* type = part(&filled)->GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      if (field->message_type() != nullptr && !field->is_map()) continue;  // has a call of its own
      if (type == Job::descriptor() && field->number() >= 20) continue;    // what the service says
      if (field->name() == "peft_config") continue;                        // input only
      INFO(field->full_name());
      jobs.job = filled;
      const std::string before = Run("show job-a").out;
      const std::vector<std::string> values = Set(part(&jobs.job), field);
      const std::string shown = Run("show job-a").out;
      CHECK(shown != before);
      for (const std::string& value : values) CHECK(Has(shown, value));
      ++fields;
    }
  }
};

TEST_CASE_METHOD(ShowFixture, "whatever a job's configuration says is shown") {
  CheckAll([](Job* job) -> Message* { return job; });
  CheckAll([](Job* job) -> Message* { return job->mutable_adapter(); });
  CheckAll([](Job* job) -> Message* { return job->mutable_adapter()->mutable_modules(0); });
  CheckAll([](Job* job) -> Message* { return job->mutable_training(); });
  CHECK(fields > 40);
}

}  // namespace
}  // namespace lorad::client
