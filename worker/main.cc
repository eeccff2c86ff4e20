// lorad-worker: one device, one group at a time. Holds nothing durable; see core.h for how it
// lives with its coordinator.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "logging/log.h"
#include "spdlog/spdlog.h"
#include "storage/files/errors.h"
#include "storage/files/files.h"
#include "worker/driver.h"
#include "worker/engine/engine.h"
#include "worker/engine/model_files.h"
#include "worker/host/device.h"
#include "worker/host/limits.h"
#include "worker/host/process.h"
#include "worker/host/stage_address.h"
#include "worker/link/channel.h"
#include "worker/link/credentials.h"
#include "worker/link/grpc_bulk.h"
#include "worker/link/grpc_link.h"
#include "worker/link/mpi_server.h"
#include "worker/link/renewal.h"
#include "worker/mpi/helper.h"
#include "worker/mpi/listener.h"
#include "worker/transport/choice.h"
#include "worker/transport/device_listener.h"
#include "worker/transport/nccl.h"
#include "worker/transport/sockets.h"

namespace lorad::worker {
namespace {

constexpr char kVersion[] = "0.1.0";
constexpr std::chrono::seconds kEndPatience(5);
constexpr int kGracePeriodMax = 86'400;  // seconds

struct Flags {
  std::string coordinator;
  std::string credentials;
  DeviceOptions device;
  std::vector<PathMap> model_maps;
  std::string name;
  std::string stage_address;
  TransportChoice transport = TransportChoice::kAuto;
  int64_t memory_bytes = 0;
  int grace_s = static_cast<int>(CoreOptions().grace_ms / 1000);
  bool die_with_parent = false;
  bool supervised = false;
  bool list_devices = false;
};

// -1: go on; else the exit status.
int ParseFlags(int argc, char** argv, Flags* flags) {
  CLI::App app{"lorad-worker: executes the training that a lorad coordinator plans"};
  auto* list = app.add_flag("--list-devices", flags->list_devices,
                            "Print the devices that it can use, a line each, and end");
  auto* coordinator =
      app.add_option("--coordinator", flags->coordinator, "Address of the coordinator, HOST:PORT");
  list->excludes(coordinator);
  app.add_option("--credentials", flags->credentials,
                 "Bundle that `lorad auth worker NAME` made, for a coordinator on another host")
      ->type_name("FILE");
  app.add_option("--device", flags->device.name, "Device to use: cpu or cuda:I")
      ->check([](const std::string& name) {
        const bool known = name == "cpu" || CudaIndex(name) >= 0;
        return known ? "" : absl::StrCat("must be cpu or cuda:I, got '", name, "'");
      })
      ->capture_default_str();
  app.add_option("--precision", flags->device.precision,
                 "Arithmetic on a GPU: bf16, or fp32 to compare with a reference")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  app.add_option(
      "--name", flags->name,
      "Name of this worker, unique in the cluster (default: that of its certificate, or host and "
      "device)");
  app.add_option("--threads", flags->device.threads,
                 "Threads for arithmetic on the CPU (default: all cores)")
      ->check(CLI::Range(0, kThreadsMax));
  app.add_option("--memory", flags->memory_bytes,
                 "Memory to use for model and adapters, like 8GiB (default: three quarters of the "
                 "machine's; on a GPU what is free)")
      ->transform(CLI::AsSizeValue(false))
      ->check([](const std::string& bytes) {
        int64_t number = 0;
        const bool enough = absl::SimpleAtoi(bytes, &number) && number >= kMemoryBytesMin;
        return enough ? ""
                      : absl::StrCat(
                            "must be at least 1MiB, for no model and adapter do with "
                            "less, got ",
                            bytes, " bytes");
      });
  app.add_option_function<std::vector<std::string>>(
         "--model-map",
         [flags](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) flags->model_maps.push_back(*ParsePathMap(text));
         },
         "Models that lie beneath FROM at the coordinator lie beneath TO here; may be given again")
      ->type_name("FROM=TO")
      ->check([](const std::string& text) {
        return std::string(ParsePathMap(text).status().message());
      });
  app.add_option_function<std::string>(
         "--transport",
         [flags](const std::string& word) { flags->transport = *ParseTransportChoice(word); },
         "How tensors go to the other stages of a model: auto; peer, into the memory of another "
         "GPU of this host, or not at all; nccl, between GPUs by NCCL, or not at all; sockets, "
         "through the hosts' memory; mpi, the same by Open MPI, for workers that all have it and "
         "a coordinator that was started with it (default: auto: peer on one host, nccl between "
         "hosts where both have it, else sockets)")
      ->type_name("auto|peer|nccl|sockets|mpi")
      ->check([](const std::string& word) {
        return std::string(ParseTransportChoice(word).status().message());
      });
  app.add_option("--stage-address", flags->stage_address,
                 "Name or address of this machine at which the other stages of a model reach it "
                 "(default: that from which it reaches the coordinator; of no use over MPI)")
      ->type_name("HOST");
  app.add_option("--grace-period", flags->grace_s,
                 "Told to end (SIGTERM, SIGINT, SIGHUP), wait so long at most until its jobs are "
                 "saved and have left; a second signal ends it at once")
      ->type_name("SECONDS")
      ->check(CLI::Range(0, kGracePeriodMax))
      ->capture_default_str();
  app.add_flag("--die-with-parent", flags->die_with_parent,
               "End when the process that started this one ends");
  app.add_flag(
      "--supervised", flags->supervised,
      "One of those that lorad serve starts, ends with itself, and says the time of in its "
      "log");
  app.set_version_flag("--version", kVersion);
  try {
    app.parse(argc, argv);
    if (!flags->list_devices && flags->coordinator.empty()) {
      throw CLI::RequiredError("--coordinator");
    }
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& wrong) {
    std::fprintf(stderr, "error: USAGE: %s; see `lorad-worker --help`\n", wrong.what());
    return 2;
  }
  return -1;
}

// SIGTERM, SIGINT and SIGHUP (its terminal is closed), to wait for; the last one not where it is
// ignored, as nohup has it. They are blocked in this thread and in all that it starts later, for no
// handler may run on a thread that computes: oneDNN's products use the stack pointer for something
// else, and the frame of a signal would lie amid somebody's numbers.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    struct sigaction hang_up = {};
    sigaction(SIGHUP, nullptr, &hang_up);
    if (hang_up.sa_handler != SIG_IGN) sigaddset(&signals_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }

  // Until one comes, or Wake.
  void Wait() const {
    int received = 0;
    sigwait(&signals_, &received);
  }
  static void Wake(std::thread* waiter) { pthread_kill(waiter->native_handle(), SIGTERM); }

 private:
  sigset_t signals_;
};

// The same for the process that takes this one's place, so that what was held against one counts.
std::string DefaultName(const std::string& device) {
  const std::string host = HostName().substr(0, 40);
  return ClaimName(
      absl::StrCat(host.empty() ? "worker" : host, "-", absl::StrReplaceAll(device, {{":", ""}})));
}

v1::Hello MakeHello(const Flags& flags, const OpenDevice& device, const std::string& numerics_id) {
  v1::Hello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_worker(flags.name);
  hello.set_version(kVersion);
  hello.set_device(flags.device.name);
  hello.set_device_name(device.description);
  hello.set_memory_bytes(flags.memory_bytes);
  hello.set_threads(device.threads);
  hello.set_pid(getpid());
  hello.set_numerics_id(numerics_id);
  hello.set_host(HostName());
  hello.set_outlives_coordinator(!flags.die_with_parent && !flags.supervised);
  hello.set_transport(flags.transport == TransportChoice::kMpi ? "mpi" : "sockets");
  hello.set_nccl(flags.transport == TransportChoice::kNccl);
  hello.set_multiprocessors(device.multiprocessors);
  hello.set_value_bytes(static_cast<int32_t>(kernels::BytesOf(device.backend->activation_dtype())));
  return hello;
}

// "REASON: message".
std::string TextOf(const absl::Status& status) {
  const std::string reason = storage::ReasonOf(status);
  const std::string message(status.message());
  return reason.empty() ? message : absl::StrCat(reason, ": ", message);
}

// Null for a coordinator on this host.
absl::StatusOr<std::unique_ptr<Credentials>> LoadCredentials(const Flags& flags) {
  if (!flags.credentials.empty()) {
    return Credentials::Load(storage::RealFiles(), flags.credentials, absl::Now());
  }
  if (IsLoopback(flags.coordinator)) return nullptr;
  return storage::WithReason(
      absl::StatusCode::kFailedPrecondition, "CREDENTIALS_MISSING",
      absl::StrCat("a coordinator on another host (", flags.coordinator,
                   ") is spoken to over TLS alone: name the worker's bundle with --credentials; "
                   "`lorad auth worker NAME` at the coordinator makes it"));
}

// Where this stage of a model waits for the others, over sockets.
absl::StatusOr<std::unique_ptr<StageListener>> ListenForStages(const Flags& flags) {
  absl::StatusOr<std::string> host = flags.stage_address;
  if (flags.stage_address.empty()) host = LocalAddressTowards(flags.coordinator);
  absl::Status status = host.status();
  if (status.ok()) {
    auto listener = SocketsListener::Open(*host);
    if (listener.ok()) return listener;
    status = listener.status();
  }
  return storage::WithReason(
      absl::StatusCode::kFailedPrecondition, "STAGE_ADDRESS",
      absl::StrCat("other stages cannot reach this worker: ", std::string(status.message()),
                   "; give an address of this machine with --stage-address"));
}

// How the host's memory reaches other stages. FAILED_PRECONDITION: MPI is not installed.
absl::StatusOr<OpenListener> HostTransport(const Flags& flags, const char* own_name,
                                           const Credentials* credentials) {
  if (flags.transport != TransportChoice::kMpi) {
    return OpenListener([&flags] { return ListenForStages(flags); });
  }
  // By link and by name: a runfiles tree has the helper beside the link.
  std::error_code ignored;
  const absl::StatusOr<std::string> helper =
      FindHelper({std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path(),
                  std::filesystem::absolute(own_name, ignored).parent_path()});
  if (!helper.ok()) {
    return storage::WithReason(helper.status().code(), "MPI_MISSING",
                               std::string(helper.status().message()));
  }
  return OpenListener([helper = *helper, &flags, credentials] {
    return MpiListener::Open(
        {.helper = helper,
         .find_server = [&flags, credentials](int64_t epoch, const std::string& silent) {
           return FindMpiServer(flags.coordinator, credentials, epoch, silent);
         }});
  });
}

// What a worker with a GPU brings to reach others. FAILED_PRECONDITION: NCCL was asked for, and is
// not there.
absl::StatusOr<DeviceWay> DeviceWayOf(const Flags& flags, kernels::DeviceCopies* copies,
                                      std::unique_ptr<const NcclLibrary>* nccl) {
  DeviceWay way{.copies = copies, .choice = flags.transport, .host = HostName()};
  if (way.choice != TransportChoice::kAuto && way.choice != TransportChoice::kNccl) return way;
  auto opened = NcclLibrary::Open();
  if (opened.ok()) {
    *nccl = *std::move(opened);
    way.nccl = nccl->get();
    return way;
  }
  way.no_nccl = std::string(opened.status().message());
  if (way.choice == TransportChoice::kAuto) return way;
  return storage::WithReason(opened.status().code(), "NCCL_MISSING", way.no_nccl);
}

// How this worker reaches other stages. `copies`: of a device with memory of its own, else null; it
// and `nccl`, which is opened here, must outlive the listeners. FAILED_PRECONDITION: MPI or NCCL is
// not installed, or the choice needs a GPU.
absl::StatusOr<OpenListener> TransportOf(const Flags& flags, const char* own_name,
                                         const Credentials* credentials,
                                         kernels::DeviceCopies* copies,
                                         std::unique_ptr<const NcclLibrary>* nccl) {
  const bool between_gpus =
      flags.transport == TransportChoice::kPeer || flags.transport == TransportChoice::kNccl;
  if (between_gpus && copies == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("--transport ", flags.transport == TransportChoice::kPeer ? "peer" : "nccl",
                     " is for GPUs, and this worker's device is ", flags.device.name));
  }
  absl::StatusOr<OpenListener> host = HostTransport(flags, own_name, credentials);
  if (!host.ok() || copies == nullptr) return host;
  absl::StatusOr<DeviceWay> way = DeviceWayOf(flags, copies, nccl);
  if (!way.ok()) return way.status();
  return OpenListener([open_below = *std::move(host),
                       way = *std::move(way)]() -> absl::StatusOr<std::unique_ptr<StageListener>> {
    auto below = open_below();
    if (!below.ok()) return below.status();
    return std::make_unique<DeviceListener>(*std::move(below), way);
  });
}

int Run(Flags flags, const char* own_name) {
  const StopSignals signals;  // before there are threads
  signal(SIGPIPE, SIG_IGN);
  // Before there are threads. NVLink's multicast, which NCCL would set up, can leave the host's GPUs
  // unusable when a process is killed, and one sender and one receiver have no use for it.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  absl::StatusOr<OpenDevice> device = Open(flags.device);
  if (!device.ok()) {
    spdlog::error("{}", std::string(device.status().message()));
    return 1;
  }
  kernels::Backend* backend = device->backend.get();
  const std::unique_ptr<kernels::DeviceCopies> copies = backend->MakeCopies();
  if (flags.memory_bytes == 0) flags.memory_bytes = device->memory_bytes;
  if (!flags.stage_address.empty()) {
    if (const absl::Status status = CheckStageAddress(flags.stage_address); !status.ok()) {
      spdlog::error("{}", TextOf(status));
      return 1;
    }
  }
  const absl::StatusOr<std::unique_ptr<Credentials>> credentials = LoadCredentials(flags);
  if (!credentials.ok()) {
    spdlog::error("{}", TextOf(credentials.status()));
    return 1;
  }
  std::unique_ptr<const NcclLibrary> nccl;
  const absl::StatusOr<OpenListener> transport =
      TransportOf(flags, own_name, credentials->get(), copies.get(), &nccl);
  if (!transport.ok()) {
    spdlog::error("{}", TextOf(transport.status()));
    return 1;
  }
  if (flags.name.empty())
    flags.name = *credentials ? (*credentials)->worker() : DefaultName(flags.device.name);

  const std::string numerics_id = NumericsId(*backend);
  spdlog::info("worker {}: {}, numerics {} ({})", flags.name, device->description, numerics_id,
               backend->NumericsId());
  GrpcBulk bulk(flags.coordinator, credentials->get());
  GrpcLink link(flags.coordinator, credentials->get());
  std::optional<Renewal> renewal;
  if (*credentials) renewal.emplace(flags.coordinator, credentials->get(), absl::Now);
  Driver driver(
      {.hello = MakeHello(flags, *device, numerics_id), .grace_ms = int64_t{1000} * flags.grace_s},
      MakeEngineMaker(backend,
                      {.memory_bytes = flags.memory_bytes,
                       .numerics_id = numerics_id,
                       .model_files = std::make_shared<ModelFiles>(flags.model_maps)},
                      SteadyClock()),
      *transport, &link, &bulk, SteadyClock());
  std::atomic<bool> ends = false;
  std::thread waiter([&] {
    for (signals.Wait(); !ends; signals.Wait()) driver.Stop();
  });
  const absl::Status status = driver.AwaitEnd();
  EndProcessAfter(kEndPatience);  // the driver waits for the operation in progress
  ends = true;
  StopSignals::Wake(&waiter);
  waiter.join();
  if (!status.ok()) {
    spdlog::error("the worker of coordinator {} ends: {}", flags.coordinator,
                  std::string(status.message()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace lorad::worker

int main(int argc, char** argv) {
  lorad::logging::KeepStandardDescriptors();
  umask(077);  // what it writes is its user's alone
  lorad::worker::Flags flags;
  const int exit_status = lorad::worker::ParseFlags(argc, argv, &flags);
  if (exit_status >= 0) return exit_status;
  if (flags.list_devices) {
    for (const std::string& line : lorad::worker::ListDevices()) std::puts(line.c_str());
    return 0;
  }
  lorad::logging::SetUpForWorker(flags.supervised);
  if (flags.die_with_parent) {
    const absl::Status status = lorad::worker::DieWithParent();
    if (!status.ok()) {
      spdlog::error("{}", std::string(status.message()));
      return 1;
    }
  }
  return lorad::worker::Run(flags, argv[0]);
}
