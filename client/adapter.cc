// lora adapter import | ls | show | rm

#include "client/text/adapter.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/calls/error.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/calls/transfer.h"
#include "client/calls/upload.h"
#include "client/text/json.h"
#include "client/text/table.h"
#include "client/text/width.h"
#include "lorad/v1/adapters.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Adapter;
using lorad::v1::Adapters;
using lorad::v1::ImportAdapterRequest;

constexpr char kWeightsFile[] = "adapter_model.safetensors";

struct Options {
  std::string name;
  std::string path;
  std::string request_id;
};

// The last names of its modules.
std::string Targets(const Adapter& adapter) {
  return JoinText({adapter.target_modules().begin(), adapter.target_modules().end()});
}

void Print(const Adapter& adapter, const Session& session) {
  if (session.json) {
    std::cout << ToJson(adapter) << "\n";
    return;
  }
  Table table = Table::OfFields();
  table.Add({"name", adapter.name()});
  table.Add({"rank", absl::StrCat(adapter.rank())});
  table.Add({"alpha", absl::StrFormat("%g", adapter.alpha())});
  table.Add({"rsLoRA", adapter.use_rslora() ? "yes" : "no"});
  // Of one that an older version imported no more than the names is known.
  table.Add(
      {"target modules", adapter.has_config() ? TargetsText(adapter.config()) : Targets(adapter)});
  AddPatterns(adapter.config(), table);
  table.Add({"size", BytesText(adapter.size_bytes())});
  table.Add({"sha256", adapter.sha256()});
  table.Add({"imported", TimeText(adapter.create_time())});
  table.PrintFields(std::cout, TerminalColumns());
}

absl::Status Import(Session& session, const Options& options) {
  Adapter adapter;
  Adapters::Stub stub(session.channel());
  grpc::ClientContext context;
  SetDeadline(context, kWorkSeconds);
  const auto writer = stub.ImportAdapter(&context, &adapter);
  ImportAdapterRequest request;
  request.mutable_config()->set_name(options.name);
  request.mutable_config()->set_request_id(options.request_id);
  bool open = writer->Write(request);
  std::error_code unknown;  // its opening says what is wrong with it
  const auto size =
      std::filesystem::file_size(std::filesystem::path(options.path) / kWeightsFile, unknown);
  TransferBar bar(!session.json, options.name, unknown ? 0 : static_cast<std::int64_t>(size));
  for (const char* name : {"adapter_config.json", kWeightsFile}) {
    const std::string path = (std::filesystem::path(options.path) / name).string();
    absl::StatusOr<std::ifstream> file = OpenFile(path);
    absl::Status read = file.status();
    request.set_file(name);
    open = open && read.ok() && writer->Write(request);
    if (open) read = WriteChunks<ImportAdapterRequest>(*file, path, *writer, bar);
    if (!read.ok()) {
      context.TryCancel();
      return read;
    }
  }
  writer->WritesDone();
  const absl::Status status = session.FromRpc(writer->Finish());
  if (status.ok()) Print(adapter, session);
  return status;
}

absl::Status List(Session& session) {
  Table table({"NAME", "RANK", "ALPHA", "TARGETS", "SIZE", "IMPORTED"});
  const auto status =
      ForEachPage(session, &Adapters::Stub::ListAdapters, lorad::v1::ListAdaptersRequest(),
                  [&](const lorad::v1::ListAdaptersResponse& page) {
                    for (const Adapter& adapter : page.adapters()) {
                      if (session.json) std::cout << ToJson(adapter) << "\n";
                      table.Add({adapter.name(), absl::StrCat(adapter.rank()),
                                 absl::StrFormat("%g", adapter.alpha()), Targets(adapter),
                                 BytesText(adapter.size_bytes()), TimeText(adapter.create_time())});
                    }
                  });
  if (status.ok() && !session.json) table.Print(std::cout);
  return status;
}

absl::Status Show(Session& session, const Options& options) {
  lorad::v1::GetAdapterRequest request;
  request.set_name(options.name);
  Adapter adapter;
  const auto status = Call(session, &Adapters::Stub::GetAdapter, request, adapter);
  if (status.ok()) Print(adapter, session);
  return status;
}

absl::Status Remove(Session& session, const Options& options) {
  lorad::v1::DeleteAdapterRequest request;
  request.set_name(options.name);
  google::protobuf::Empty empty;
  return Call(session, &Adapters::Stub::DeleteAdapter, request, empty);
}

}  // namespace

void AddAdapterCommands(CLI::App& app, Session& session) {
  CLI::App& group = *app.add_subcommand("adapter", "Imported adapters, to go on training from");
  group.require_subcommand(0, 1);
  const auto options = std::make_shared<Options>();

  CLI::App& add = *group.add_subcommand("import", "Store a PEFT adapter directory");
  add.add_option("name", options->name, "The adapter's id")->required();
  add.add_option("--path", options->path, "adapter_config.json and adapter_model.safetensors")
      ->required();
  add.add_option("--request-id", options->request_id, "Makes a repeated call harmless");
  add.callback([&session, options] {
    session.action = [&session, options] { return Import(session, *options); };
  });

  group.add_subcommand("ls", "List them")->callback([&session] {
    session.action = [&session] { return List(session); };
  });

  CLI::App& show = *group.add_subcommand("show", "Show one");
  show.add_option("name", options->name, "The adapter's id")->required();
  show.callback([&session, options] {
    session.action = [&session, options] { return Show(session, *options); };
  });

  CLI::App& remove = *group.add_subcommand("rm", "Delete one");
  remove.add_option("name", options->name, "The adapter's id")->required();
  remove.callback([&session, options] {
    session.action = [&session, options] { return Remove(session, *options); };
  });
}

}  // namespace lorad::client
