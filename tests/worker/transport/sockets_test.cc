// Who may join by sockets, and who is refused; what comes over a connection that is no frame.
#include "worker/transport/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "storage/files/sha256.h"
#include "tests/worker/transport/join.h"
#include "worker/transport/frame.h"

namespace lorad::worker {
namespace {

// For what ends with its time, and for what is to come about on a machine that has much to do.
constexpr SocketsOptions kQuick{.join_ms = 400, .hello_ms = 60'000, .wait_ms = 2'000};
constexpr SocketsOptions kPatient{.join_ms = 20'000, .hello_ms = 60'000, .wait_ms = 20'000};

std::string MessageOf(const absl::StatusOr<std::unique_ptr<Transport>>& joined) {
  return std::string(joined.status().message());
}

Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(5); }

// As worker.proto has it.
std::string ProofOf(const std::string& secret, int64_t epoch, int from, int to, int purpose) {
  return storage::Sha256::Of(secret + "/" + std::to_string(epoch) + "/" + std::to_string(from) +
                             "/" + std::to_string(to) + "/" + std::to_string(purpose));
}

// A connection to a stage that the test speaks on by hand.
class Raw {
 public:
  explicit Raw(const std::string& endpoint) {
    auto dialled = Dial(endpoint, 5'000, Soon(), wake_up_);
    REQUIRE(dialled.ok());
    socket_ = *std::move(dialled);
  }
  void Say(std::string_view bytes) {
    REQUIRE(WriteSome(socket_.get(), bytes.data(), static_cast<int64_t>(bytes.size())).ok());
  }
  // With the proof of who has `secret`.
  void SayHello(int64_t epoch, int32_t stage, v1::StageHello::Purpose purpose,
                const std::string& secret = "") {
    SayProof(epoch, stage, purpose, ProofOf(secret, epoch, stage, 0, purpose));
  }
  void SayProof(int64_t epoch, int32_t stage, v1::StageHello::Purpose purpose,
                const std::string& proof) {
    v1::StageHello hello;
    hello.set_proof(proof);
    hello.set_epoch(epoch);
    hello.set_stage(stage);
    hello.set_stages(2);
    hello.set_numerics_id("numerics");
    hello.set_purpose(purpose);
    Say(BeginFrame(FrameKind::kHello, hello.SerializeAsString(), 0));
  }
  // What the other side says next; empty where it hangs up.
  v1::StageHello Hear() {
    std::string bytes(4096, '\0');
    REQUIRE(Await(socket_.get(), POLLIN, Soon(), wake_up_).ok());
    const auto got = ReadSome(socket_.get(), bytes.data(), 4096);
    v1::StageHello hello;
    if (got.ok()) hello.ParseFromString(bytes.substr(kFrameHeaderBytes, *got - kFrameHeaderBytes));
    return hello;
  }

 private:
  WakeUp wake_up_;
  FileDescriptor socket_;
};

TEST_CASE("a frame is what it was, and nothing else is one") {
  for (const int64_t body : {int64_t{0}, int64_t{5'000'000'000}}) {
    const std::string frame = BeginFrame(FrameKind::kTensor, "head", body);
    REQUIRE(frame.size() == kFrameHeaderBytes + 4);
    const auto header = ParseFrameHeader(frame.substr(0, kFrameHeaderBytes));
    REQUIRE(header.ok());
    CHECK(header->kind == FrameKind::kTensor);
    CHECK(header->head_bytes == 4);
    CHECK(header->body_bytes == body);
  }
  const std::string good = BeginFrame(FrameKind::kNote, "", 0);
  for (size_t at = 0; at < good.size(); ++at) {
    INFO("byte " << at);
    std::string bad = good;
    bad[at] = static_cast<char>(0xEE);
    CHECK(ParseFrameHeader(bad).ok() == (at == 8 || at == 9));  // a longer head
  }
  CHECK_FALSE(ParseFrameHeader(good.substr(1)).ok());
}

TEST_CASE("stages of one group join; of another epoch or numerics they do not") {
  struct Case {
    const char* what;
    std::function<void(StageIdentity*)> change;
    const char* message;
  };
  const Case cases[] = {
      {"epoch", [](StageIdentity* me) { me->epoch += me->stage; }, "epoch 8"},
      {"numerics",
       [](StageIdentity* me) {
         if (me->stage == 0) me->numerics_id = "other";
       },
       "numerics numerics"},
      {"secret", [](StageIdentity* me) { me->secret = std::to_string(me->stage); }, "no proof"},
  };
  for (const auto& joined : TryJoinBySockets(4, kPatient)) CHECK(joined.ok());
  for (const Case& c : cases) {
    INFO(c.what);
    const Joined joined = TryJoinBySockets(2, kQuick, c.change);
    CHECK(absl::IsFailedPrecondition(joined[1].status()));  // told why
    CHECK_THAT(MessageOf(joined[1]), Catch::Contains(c.message) && Catch::Contains("stage 0 at"));
    CHECK(absl::IsDeadlineExceeded(joined[0].status()));  // waited for the right one
    CHECK_THAT(MessageOf(joined[0]), Catch::Contains("stage 1 has not connected"));
  }
}

TEST_CASE("strangers do not keep the right stage from joining") {
  auto first = SocketsListener::Open("127.0.0.1", kPatient);
  auto second = SocketsListener::Open("127.0.0.1", kPatient);
  REQUIRE((first.ok() && second.ok()));
  const std::vector<std::string> endpoints = {(*first)->endpoint(), (*second)->endpoint()};
  Raw silent(endpoints[0]);
  Raw garbage(endpoints[0]);
  garbage.Say("GET / HTTP/1.1\r\nHost: here\r\n\r\n");
  Raw old(endpoints[0]);
  old.SayHello(6, 1, v1::StageHello::TENSORS);
  Raw of_no_use(endpoints[0]);
  of_no_use.SayHello(7, 0, v1::StageHello::TENSORS);
  absl::StatusOr<std::unique_ptr<Transport>> joined[2] = {absl::UnknownError(""),
                                                          absl::UnknownError("")};
  std::thread other([&] { joined[0] = (*first)->Join({7, 0, 2, "numerics"}, endpoints); });
  CHECK_THAT(old.Hear().refusal(), Catch::Contains("epoch 6"));
  CHECK_THAT(of_no_use.Hear().refusal(), Catch::Contains("not awaited"));
  joined[1] = (*second)->Join({7, 1, 2, "numerics"}, endpoints);
  other.join();
  REQUIRE(joined[0].ok());
  REQUIRE(joined[1].ok());
  REQUIRE((*joined[1])->SendNote(0, "here").ok());
  CHECK(*(*joined[0])->WaitNote(1) == "here");
}

// How long TCP waits on the connections of this process.
std::vector<int> UserTimeouts() {
  std::vector<int> found;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage peer = {};
    socklen_t length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    int ms = 0;
    length = sizeof(ms);
    if (getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &length) == 0) found.push_back(ms);
  }
  return found;
}

TEST_CASE("a host that is cut off is waited for as long as its coordinator would, or less") {
  struct Case {
    int64_t silence_ms, lease_ms;
    int waits_ms;
  };
  for (const Case& c : {Case{10'000, 3'000, 3'000}, Case{10'000, 30'000, 10'000}}) {
    INFO(c.lease_ms);
    const auto joined = AllOf(TryJoinBySockets(
        2, {.silence_ms = c.silence_ms}, [&c](StageIdentity* me) { me->lease_ms = c.lease_ms; }));
    CHECK(UserTimeouts() == std::vector<int>(4, c.waits_ms));  // two connections, both ends
  }
}

TEST_CASE("a stage that does not come to join is waited for as long as its coordinator would") {
  auto first = SocketsListener::Open("127.0.0.1", kPatient);
  auto second = SocketsListener::Open("127.0.0.1", kPatient);
  REQUIRE((first.ok() && second.ok()));
  const std::vector<std::string> endpoints = {(*first)->endpoint(), (*second)->endpoint()};
  StageIdentity me{7, 0, 2, "numerics"};
  me.lease_ms = 300;
  const auto joined = (*first)->Join(me, endpoints);
  CHECK(absl::IsDeadlineExceeded(joined.status()));
  CHECK_THAT(MessageOf(joined), Catch::Contains("stage 1 has not connected in 300 ms"));
}

TEST_CASE("more strangers than are listened to at once do not keep the right stage from joining") {
  // No stranger is refused for its silence in the time of this test.
  auto first = SocketsListener::Open("127.0.0.1", kPatient);
  auto second = SocketsListener::Open("127.0.0.1", kPatient);
  REQUIRE((first.ok() && second.ok()));
  const std::vector<std::string> endpoints = {(*first)->endpoint(), (*second)->endpoint()};
  absl::StatusOr<std::unique_ptr<Transport>> joined[2] = {absl::UnknownError(""),
                                                          absl::UnknownError("")};
  std::thread other([&] { joined[0] = (*first)->Join({7, 0, 2, "numerics"}, endpoints); });
  std::vector<std::unique_ptr<Raw>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<Raw>(endpoints[0]));
  joined[1] = (*second)->Join({7, 1, 2, "numerics"}, endpoints);
  other.join();
  CHECK(joined[0].ok());
  CHECK(joined[1].ok());
}

// The lines of the log that tell of refused connections, and how many of these they tell of.
struct Refusals {
  int lines = 0;
  int told = 0;
};

Refusals RefusalsDuring(const std::function<void()>& what) {
  std::ostringstream lines;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines)));
  what();
  spdlog::set_default_logger(before);
  const std::string said = lines.str();
  INFO(said);
  const std::regex line(
      "stage 0 refuses a connection of 127\\.0\\.0\\.1:\\d+: [^\n]+?"
      "(?: \\(and (\\d+) more before it\\))?\n");
  Refusals refusals;
  for (std::sregex_iterator at(said.begin(), said.end(), line), end; at != end; ++at) {
    ++refusals.lines;
    refusals.told += 1 + ((*at)[1].matched ? std::stoi((*at)[1].str()) : 0);
  }
  return refusals;
}

TEST_CASE("who says nothing is told of once no stage is awaited, in the kernel's backlog too") {
  auto listener = SocketsListener::Open("127.0.0.1", {.join_ms = 20'000, .hello_ms = 60'000});
  REQUIRE(listener.ok());
  const std::string endpoint = (*listener)->endpoint();
  std::vector<std::unique_ptr<Raw>> silent;
  const auto come = [&](int count) {
    for (int i = 0; i < count; ++i) silent.push_back(std::make_unique<Raw>(endpoint));
  };
  const Refusals refusals = RefusalsDuring([&] {
    come(5);
    Raw tensors(endpoint), notes(endpoint);
    tensors.SayHello(7, 1, v1::StageHello::TENSORS);
    notes.SayHello(7, 1, v1::StageHello::NOTES);
    come(10);  // nobody looks at these before the stage is there
    CHECK((*listener)->Join({7, 0, 2, "numerics"}, {endpoint, "127.0.0.1:1"}).ok());
  });
  CHECK(refusals.told == 15);
  CHECK(refusals.lines == 2);
}

TEST_CASE("who is refused is told of with its address, once a second at most") {
  auto listener = SocketsListener::Open("127.0.0.1", {.join_ms = 60'000});
  REQUIRE(listener.ok());
  constexpr int kStrangers = 150;  // the last 50 at once, fewer than the kernel keeps waiting
  const auto began = std::chrono::steady_clock::now();
  const Refusals refusals = RefusalsDuring([&] {
    std::thread joins([&] {
      (*listener)
          ->Join({7, 0, 2, "numerics"}, {(*listener)->endpoint(), "127.0.0.1:1"})
          .status()
          .IgnoreError();
    });
    std::vector<std::unique_ptr<Raw>> strangers;
    for (int i = 0; i < kStrangers; ++i) {
      strangers.push_back(std::make_unique<Raw>((*listener)->endpoint()));
      strangers.back()->Say("GET / HTTP/1.1\r\nHost: here\r\n\r\n");
      if (i < 100) std::this_thread::sleep_for(std::chrono::milliseconds(12));
    }
    for (const auto& stranger : strangers) stranger->Hear();  // it is refused
    (*listener)->Interrupt();
    joins.join();
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  CHECK(refusals.told == kStrangers);  // each is counted once, the last ones too
  CHECK(refusals.lines >= 2);
  CHECK(refusals.lines <= 2 + took.count());  // at once, after each second, and at the end
}

TEST_CASE("a stage that is there already is not taken again") {
  auto first = SocketsListener::Open("127.0.0.1", kPatient);
  REQUIRE(first.ok());
  std::thread other([&] {
    (*first)
        ->Join({7, 0, 2, "numerics"}, {(*first)->endpoint(), "127.0.0.1:1"})
        .status()
        .IgnoreError();
  });
  Raw once((*first)->endpoint());
  once.SayHello(7, 1, v1::StageHello::TENSORS);
  CHECK(once.Hear().refusal().empty());
  Raw twice((*first)->endpoint());
  twice.SayHello(7, 1, v1::StageHello::TENSORS);
  CHECK_THAT(twice.Hear().refusal(), Catch::Contains("there already"));
  (*first)->Interrupt();
  other.join();
}

TEST_CASE("only who has the group's secret is a stage of it, and nobody learns it by asking") {
  auto first = SocketsListener::Open("127.0.0.1", kPatient);
  REQUIRE(first.ok());
  const StageIdentity me{
      .epoch = 7, .stage = 0, .stages = 2, .numerics_id = "numerics", .secret = "ours"};
  std::thread other([&] {
    (*first)->Join(me, {(*first)->endpoint(), "127.0.0.1:1"}).status().IgnoreError();
  });
  const auto purpose = v1::StageHello::TENSORS;
  const struct {
    const char* what;
    std::string proof;
  } strangers[] = {
      {"none", ""},
      {"another secret", ProofOf("theirs", 7, 1, 0, purpose)},
      {"what a stage has said to another", ProofOf("ours", 7, 1, 2, purpose)},
      {"for other tidings", ProofOf("ours", 7, 1, 0, v1::StageHello::NOTES)},
      {"of the epoch before", ProofOf("ours", 6, 1, 0, purpose)},
      {"of who is called", ProofOf("ours", 7, 0, 1, purpose)},
  };
  for (const auto& stranger : strangers) {
    INFO(stranger.what);
    Raw raw((*first)->endpoint());
    raw.SayProof(7, 1, purpose, stranger.proof);
    const v1::StageHello answer = raw.Hear();
    CHECK_THAT(answer.refusal(), Catch::Contains("no proof"));
    CHECK(answer.proof().empty());
  }
  Raw right((*first)->endpoint());
  right.SayHello(7, 1, purpose, "ours");
  const v1::StageHello answer = right.Hear();
  CHECK(answer.refusal().empty());
  CHECK(answer.proof() == ProofOf("ours", 7, 0, 1, purpose));
  (*first)->Interrupt();
  other.join();
}

TEST_CASE("who listens where a stage did, and has not its group's secret, is not believed") {
  auto listening = Listen("127.0.0.1");
  REQUIRE(listening.ok());
  const std::string endpoint = "127.0.0.1:" + std::to_string(listening->port);
  for (const bool has_secret : {false, true}) {
    std::thread impostor([&] {
      WakeUp wake_up;
      REQUIRE(Await(listening->socket.get(), POLLIN, Soon(), wake_up).ok());
      auto accepted = Accept(listening->socket.get(), 5'000);
      REQUIRE(accepted.ok());
      REQUIRE(Await(accepted->get(), POLLIN, Soon(), wake_up).ok());
      std::string said(4096, '\0');
      const auto got = ReadSome(accepted->get(), said.data(), 4096);
      REQUIRE(got.ok());
      v1::StageHello hello;
      REQUIRE(hello.ParseFromString(said.substr(kFrameHeaderBytes, *got - kFrameHeaderBytes)));
      hello.set_stage(0);  // and its proof is what it was
      if (has_secret) hello.set_proof(ProofOf("ours", 7, 0, 1, hello.purpose()));
      const std::string frame = BeginFrame(FrameKind::kHello, hello.SerializeAsString(), 0);
      WriteSome(accepted->get(), frame.data(), static_cast<int64_t>(frame.size())).IgnoreError();
    });
    auto stage = SocketsListener::Open("127.0.0.1", has_secret ? kQuick : kPatient);
    REQUIRE(stage.ok());
    const StageIdentity me{
        .epoch = 7, .stage = 1, .stages = 2, .numerics_id = "numerics", .secret = "ours"};
    const auto joined = (*stage)->Join(me, {endpoint, (*stage)->endpoint()});
    impostor.join();
    if (has_secret) {  // and goes on to the notes, for which nobody answers
      CHECK(absl::IsDeadlineExceeded(joined.status()));
    } else {
      CHECK_THAT(MessageOf(joined), Catch::Contains("no proof"));
    }
  }
}

TEST_CASE("a join ends where nobody listens, where no endpoint is one, and when interrupted") {
  auto listener = SocketsListener::Open("127.0.0.1", kQuick);
  REQUIRE(listener.ok());
  struct Case {
    const char* endpoint;
    absl::StatusCode code;
  };
  const Case cases[] = {{"127.0.0.1:1", absl::StatusCode::kUnavailable},
                        {"nowhere", absl::StatusCode::kInvalidArgument},
                        {"127.0.0.1:", absl::StatusCode::kInvalidArgument},
                        {"no.such.host.invalid:1", absl::StatusCode::kUnavailable}};
  for (const Case& c : cases) {
    INFO(c.endpoint);
    const auto joined =
        (*listener)->Join({7, 1, 2, "numerics"}, {c.endpoint, (*listener)->endpoint()});
    CHECK(joined.status().code() == c.code);
  }
  CHECK(absl::IsInvalidArgument((*listener)->Join({7, 2, 2, "numerics"}, {"", ""}).status()));
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    (*listener)->Interrupt();
  });
  CHECK(absl::IsCancelled(
      (*listener)->Join({7, 0, 2, "numerics"}, {(*listener)->endpoint(), ""}).status()));
  other.join();
}

TEST_CASE("a neighbour that lives is waited for, however much is to be sent to it") {
  // A tensor that no socket holds, for which there is room long after the kernel would have taken a
  // peer that reads nothing for dead.
  const auto stages = JoinBySockets(2, {.silence_ms = 1'000});
  std::vector<float> values(16 << 20, 1);
  std::vector<float> memory(values.size());
  const auto view = [](std::vector<float>& of) {
    return kernels::HostMatrix(of.data(), static_cast<int64_t>(of.size()) / 1024, 1024);
  };
  REQUIRE(stages[0]->Send(Lane::kActivations, {1, view(values).rows}, view(values)).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(3'500));
  REQUIRE(stages[1]->PostReceive(Lane::kActivations, view(memory)).ok());
  CHECK(stages[1]->WaitReceived(Lane::kActivations).ok());
  CHECK(stages[0]->WaitSent(Lane::kActivations).ok());
  CHECK((memory == values));
}

TEST_CASE("a tensor that comes before there is room for it ends the transport") {
  auto first = SocketsListener::Open("127.0.0.1", kPatient);
  REQUIRE(first.ok());
  absl::StatusOr<std::unique_ptr<Transport>> joined = absl::UnknownError("");
  std::thread other([&] {
    joined = (*first)->Join({7, 0, 2, "numerics"}, {(*first)->endpoint(), "127.0.0.1:1"});
  });
  Raw tensors((*first)->endpoint());
  tensors.SayHello(7, 1, v1::StageHello::TENSORS);
  Raw notes((*first)->endpoint());
  notes.SayHello(7, 1, v1::StageHello::NOTES);
  other.join();
  REQUIRE(joined.ok());
  tensors.Say(BeginFrame(FrameKind::kTensor, v1::StagePassage().SerializeAsString(), 0));
  const absl::Status status = (*joined)->WaitNote(1).status();
  CHECK(absl::IsInternal(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("no room"));
}

TEST_CASE("the address towards a coordinator of this machine is loopback's") {
  CHECK(*LocalAddressTowards("127.0.0.1:4571") == "127.0.0.1");
  CHECK(*LocalAddressTowards("[::1]:4571") == "::1");
  CHECK(absl::IsInvalidArgument(LocalAddressTowards("nowhere").status()));
  CHECK(absl::IsUnavailable(LocalAddressTowards("no.such.host.invalid:1").status()));
}

TEST_CASE("what is no frame, or on the wrong connection, ends the transport") {
  for (const std::string& bytes :
       {std::string("no frame at all, but long enough"), BeginFrame(FrameKind::kHello, "", 0),
        BeginFrame(FrameKind::kTensor, "", 0)}) {
    auto first = SocketsListener::Open("127.0.0.1", kPatient);
    REQUIRE(first.ok());
    absl::StatusOr<std::unique_ptr<Transport>> joined = absl::UnknownError("");
    std::thread other([&] {
      joined = (*first)->Join({7, 0, 2, "numerics"}, {(*first)->endpoint(), "127.0.0.1:1"});
    });
    Raw tensors((*first)->endpoint());
    tensors.SayHello(7, 1, v1::StageHello::TENSORS);
    Raw notes((*first)->endpoint());
    notes.SayHello(7, 1, v1::StageHello::NOTES);
    other.join();
    REQUIRE(joined.ok());
    notes.Say(bytes);
    CHECK(absl::IsInternal((*joined)->WaitNote(1).status()));
  }
}

}  // namespace
}  // namespace lorad::worker
