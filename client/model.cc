// lora model add | ls | show | update | rm

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/calls/range.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/inputs/text_file.h"
#include "client/text/json.h"
#include "client/text/table.h"
#include "client/text/width.h"
#include "lorad/v1/models.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Model;
using lorad::v1::Models;

struct Options {
  std::string name;
  std::string path;
  std::string request_id;
  std::string chat_template;  // a file
  int32_t stages = 0;
};

void Print(const Model& model, const Session& session) {
  if (session.json) {
    std::cout << ToJson(model) << "\n";
    return;
  }
  Table table = Table::OfFields();
  table.Add({"name", model.name()});
  table.Add({"path", model.path()});
  table.Add({"architecture", model.architecture()});
  table.Add({"parameters", absl::StrCat(model.parameters())});
  table.Add({"weight files", BytesText(model.size_bytes())});
  table.Add({"layers", absl::StrCat(model.layers())});
  table.Add({"hidden size", absl::StrCat(model.hidden_size())});
  table.Add({"vocabulary", absl::StrCat(model.vocabulary_size())});
  table.Add({"positions", absl::StrCat(model.max_position_embeddings())});
  table.Add(
      {"target modules", JoinText({model.target_modules().begin(), model.target_modules().end()})});
  table.Add({"tokenizer", model.has_tokenizer() ? "yes" : "no"});
  table.Add({"chat template", !model.has_chat_template()             ? "no"
                              : model.chat_template_sha256().empty() ? "yes"
                                                                     : "given"});
  table.Add({"stages", model.stages() == 0 ? "as few as hold it" : absl::StrCat(model.stages())});
  table.Add({"registered", TimeText(model.create_time())});
  table.PrintFields(std::cout, TerminalColumns());
}

absl::Status Add(Session& session, const Options& options) {
  lorad::v1::RegisterModelRequest request;
  request.set_name(options.name);
  // The daemon has a working directory of its own. It is for the daemon to refuse a path that has
  // no absolute form.
  std::error_code error;
  const auto path = std::filesystem::absolute(options.path, error);
  request.set_path(error ? options.path : path.lexically_normal().string());
  request.set_request_id(options.request_id);
  request.set_stages(options.stages);
  if (!options.chat_template.empty()) {
    absl::StatusOr<std::string> text = ReadText(options.chat_template);
    if (!text.ok()) return text.status();
    if (text->empty()) {
      return Error("EMPTY_FILE", absl::StrCat(options.chat_template, " holds no template"));
    }
    request.set_chat_template(*std::move(text));
  }
  Model model;
  const auto status = Call(session, &Models::Stub::RegisterModel, request, model, kWorkSeconds);
  if (status.ok()) Print(model, session);
  return status;
}

absl::Status List(Session& session) {
  Table table({"NAME", "ARCHITECTURE", "PARAMETERS", "WEIGHTS", "TOKENIZER", "TEMPLATE", "PATH"});
  const auto status = ForEachPage(
      session, &Models::Stub::ListModels, lorad::v1::ListModelsRequest(),
      [&](const lorad::v1::ListModelsResponse& page) {
        for (const Model& model : page.models()) {
          if (session.json) std::cout << ToJson(model) << "\n";
          table.Add({model.name(), model.architecture(), absl::StrCat(model.parameters()),
                     BytesText(model.size_bytes()), model.has_tokenizer() ? "yes" : "no",
                     model.has_chat_template() ? "yes" : "no", model.path()});
        }
      });
  if (status.ok() && !session.json) table.Print(std::cout);
  return status;
}

absl::Status Show(Session& session, const Options& options) {
  lorad::v1::GetModelRequest request;
  request.set_name(options.name);
  Model model;
  const auto status = Call(session, &Models::Stub::GetModel, request, model);
  if (status.ok()) Print(model, session);
  return status;
}

absl::Status Update(Session& session, const Options& options) {
  lorad::v1::UpdateModelRequest request;
  request.mutable_model()->set_name(options.name);
  request.mutable_model()->set_stages(options.stages);
  request.mutable_update_mask()->add_paths("stages");
  Model model;
  const auto status = Call(session, &Models::Stub::UpdateModel, request, model);
  if (status.ok()) Print(model, session);
  return status;
}

absl::Status Remove(Session& session, const Options& options) {
  lorad::v1::UnregisterModelRequest request;
  request.set_name(options.name);
  google::protobuf::Empty empty;
  return Call(session, &Models::Stub::UnregisterModel, request, empty);
}

}  // namespace

void AddModelCommands(CLI::App& app, Session& session) {
  CLI::App& group =
      *app.add_subcommand("model", "Base models: frozen weights on the server's side");
  group.require_subcommand(0, 1);
  const auto options = std::make_shared<Options>();

  CLI::App& add = *group.add_subcommand("add", "Register a Hugging Face directory");
  add.add_option("name", options->name, "The model's id")->required();
  add.add_option("--path", options->path, "The directory, on the server's machine")->required();
  add.add_option("--chat-template", options->chat_template,
                 "A Jinja file in the place of the directory's template");
  add.add_option("--stages", options->stages,
                 "So many workers share it, each with a stage; 0: as few as hold it")
      ->check(From(0, std::numeric_limits<int>::max()));
  add.add_option("--request-id", options->request_id, "Makes a repeated call harmless");
  add.callback([&session, options] {
    session.action = [&session, options] { return Add(session, *options); };
  });

  group.add_subcommand("ls", "List them")->callback([&session] {
    session.action = [&session] { return List(session); };
  });

  CLI::App& show = *group.add_subcommand("show", "Show one");
  show.add_option("name", options->name, "The model's id")->required();
  show.callback([&session, options] {
    session.action = [&session, options] { return Show(session, *options); };
  });

  CLI::App& update =
      *group.add_subcommand("update", "Change one; groups formed from then on follow it");
  update.add_option("name", options->name, "The model's id")->required();
  update.add_option("--stages", options->stages, "So many workers share it; 0: as few as hold it")
      ->check(From(0, std::numeric_limits<int>::max()))
      ->required();
  update.callback([&session, options] {
    session.action = [&session, options] { return Update(session, *options); };
  });

  CLI::App& remove = *group.add_subcommand("rm", "Forget one; its files stay");
  remove.add_option("name", options->name, "The model's id")->required();
  remove.callback([&session, options] {
    session.action = [&session, options] { return Remove(session, *options); };
  });
}

}  // namespace lorad::client
