#include "worker/mpi/relay.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

namespace lorad::worker {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kBeatTag = 3;
constexpr milliseconds kBetweenBeats{500};
constexpr milliseconds kDialAtMost{2'000};
// Telling the others of the end: a library that has taken bytes may not have sent them.
constexpr milliseconds kFarewellAtLeast{100};
constexpr milliseconds kFarewellAtMost{1'000};
// Pieces of a stream under way in each direction, and their bytes: what one read may give.
constexpr size_t kPieces = 4;
constexpr int kPieceBytes = 1 << 20;

bool Tested(MPI_Request* request, MPI_Status* status) {
  int done = 0;
  RequireMpi(MPI_Test(request, &done, status), "MPI_Test");
  return done != 0;
}

// One stream's bytes on their way. Pieces leave and come in order; an empty one is the end.
class StreamRelay {
 public:
  StreamRelay(Stream stream, MPI_Comm link, const RelayOptions& options)
      : stream_(std::move(stream)), link_(link), options_(options) {
    for (Piece& piece : out_) piece.bytes = std::make_unique<char[]>(kPieceBytes);
    for (Piece& piece : in_) {
      piece.bytes = std::make_unique<char[]>(kPieceBytes);
      Receive(&piece);
    }
  }

  // Does what can be done now. True: something was.
  bool Turn() {
    bool moved = false;
    while (out_count_ > 0 && Tested(&out_[out_first_].request, MPI_STATUS_IGNORE)) {
      out_first_ = (out_first_ + 1) % kPieces;
      --out_count_;
      moved = true;
    }
    while (!ended_ && ReadLocal()) moved = true;
    while (!ended_ && TakePiece()) moved = true;
    return moved;
  }

  // Here or there; what came before has been handed on.
  bool ended() const { return ended_; }

  // The last that goes out.
  void SendEnd() {
    end_is_sent_ = true;
    RequireMpi(MPI_Isend(nullptr, 0, MPI_BYTE, 0, stream_.tag, link_, &end_), "MPI_Isend");
  }
  bool EndHasLeft() { return out_count_ == 0 && Tested(&end_, MPI_STATUS_IGNORE); }

  // What it waits for of its worker; fd -1: nothing.
  pollfd awaited() const {
    const int events = (out_count_ < kPieces ? POLLIN : 0) | (in_bytes_ > 0 ? POLLOUT : 0);
    return {ended_ ? -1 : stream_.local.get(), static_cast<short>(events), 0};
  }

 private:
  struct Piece {
    std::unique_ptr<char[]> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void Receive(Piece* piece) {
    RequireMpi(MPI_Irecv(piece->bytes.get(), kPieceBytes, MPI_BYTE, 0, stream_.tag, link_,
                         &piece->request),
               "MPI_Irecv");
  }

  bool ReadLocal() {
    if (end_is_sent_ || !stream_.local.open() || out_count_ == kPieces) return false;
    Piece& piece = out_[(out_first_ + out_count_) % kPieces];
    const auto got = ReadSome(stream_.local.get(), piece.bytes.get(), kPieceBytes);
    ended_ = !got.ok();
    if (!got.ok() || *got == 0) return false;
    RequireMpi(MPI_Isend(piece.bytes.get(), static_cast<int>(*got), MPI_BYTE, 0, stream_.tag, link_,
                         &piece.request),
               "MPI_Isend");
    ++out_count_;
    return true;
  }

  // Hands on what has come of the oldest piece.
  bool TakePiece() {
    Piece& piece = in_[in_first_];
    if (in_bytes_ == 0) {
      MPI_Status status;
      if (!Tested(&piece.request, &status)) return false;
      int bytes = 0;
      RequireMpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
      in_bytes_ = bytes;
      in_done_ = 0;
      ended_ = bytes == 0 || !ReachWorker();
      if (ended_) {
        if (stream_.local.open()) shutdown(stream_.local.get(), SHUT_WR);
        return true;
      }
    }
    const auto put =
        WriteSome(stream_.local.get(), piece.bytes.get() + in_done_, in_bytes_ - in_done_);
    ended_ = !put.ok();
    if (!put.ok() || *put == 0) return false;
    in_done_ += *put;
    if (in_done_ < in_bytes_) return true;
    in_bytes_ = 0;
    Receive(&piece);
    in_first_ = (in_first_ + 1) % kPieces;
    return true;
  }

  bool ReachWorker() {
    if (stream_.local.open()) return true;
    static const WakeUp never;
    auto dialled = Dial(options_.worker, options_.silence_ms, Clock::now() + kDialAtMost, never);
    if (!dialled.ok()) return false;
    stream_.local = *std::move(dialled);
    return true;
  }

  Stream stream_;
  const MPI_Comm link_;
  const RelayOptions& options_;
  bool ended_ = false;
  bool end_is_sent_ = false;
  MPI_Request end_ = MPI_REQUEST_NULL;

  std::array<Piece, kPieces> out_, in_;
  size_t out_first_ = 0, out_count_ = 0, in_first_ = 0;
  int64_t in_bytes_ = 0, in_done_ = 0;  // of in_first_
};

// A sign of life on a link, in both directions: a library whose peer was killed says nothing.
class Beats {
 public:
  Beats(int peer, MPI_Comm link) : peer_(peer), link_(link) { Receive(); }
  Beats(const Beats&) = delete;
  Beats& operator=(const Beats&) = delete;

  // Silence counts from the first beat on: before, the peer is still connecting to others.
  void Turn(Clock::time_point now, int64_t silence_ms) {
    if (Tested(&in_, MPI_STATUS_IGNORE)) {
      heard_ = now;
      Receive();
    }
    if (heard_ != Clock::time_point() && now - heard_ > milliseconds(silence_ms)) {
      std::fprintf(stderr, "stage %d has been silent for %lld ms\n", peer_,
                   static_cast<long long>(silence_ms));
      _exit(1);
    }
    if (now < next_ || !Tested(&out_, MPI_STATUS_IGNORE)) return;
    RequireMpi(MPI_Isend(&out_byte_, 1, MPI_BYTE, 0, kBeatTag, link_, &out_), "MPI_Isend");
    next_ = now + kBetweenBeats;
  }

 private:
  void Receive() {
    RequireMpi(MPI_Irecv(&in_byte_, 1, MPI_BYTE, 0, kBeatTag, link_, &in_), "MPI_Irecv");
  }

  const int peer_;
  const MPI_Comm link_;
  MPI_Request out_ = MPI_REQUEST_NULL, in_ = MPI_REQUEST_NULL;
  char out_byte_ = 0, in_byte_ = 0;
  Clock::time_point heard_, next_;
};

// MPI wants to be called to make progress. A turn follows at once where the last one moved
// something, soon for a while after that, else late enough to leave the processor to others.
class Pause {
 public:
  void After(bool moved, std::vector<pollfd>* fds) {
    const auto now = Clock::now();
    if (moved) moved_ = now;
    if (now - moved_ < kAtOnceFor) {
      sched_yield();
      return;
    }
    const timespec wait = {0, now - moved_ < kSoonFor ? 50'000 : 1'000'000};
    ppoll(fds->data(), fds->size(), &wait, nullptr);
  }

 private:
  static constexpr std::chrono::microseconds kAtOnceFor{100};
  static constexpr milliseconds kSoonFor{1'000};
  Clock::time_point moved_;
};

using Relays = std::vector<std::unique_ptr<StreamRelay>>;

void SayFarewell(const Relays& relays) {
  const auto start = Clock::now();
  for (const auto& relay : relays) relay->SendEnd();
  for (bool sent = false; Clock::now() - start < kFarewellAtMost;) {
    sent = true;
    for (const auto& relay : relays) {
      relay->Turn();
      sent = relay->EndHasLeft() && sent;
    }
    if (sent && Clock::now() - start >= kFarewellAtLeast) return;
    sched_yield();
  }
}

}  // namespace

void Relay(const Links& links, std::vector<Stream> streams, const RelayOptions& options,
           Progress* progress) {
  std::vector<std::unique_ptr<Beats>> beats;
  for (const auto& [peer, link] : links) beats.push_back(std::make_unique<Beats>(peer, link));
  Relays relays;
  for (Stream& stream : streams) {
    const MPI_Comm link = links.at(stream.peer);
    relays.push_back(std::make_unique<StreamRelay>(std::move(stream), link, options));
  }
  progress->stage = Progress::Stage::kRelays;
  Pause pause;
  std::vector<pollfd> fds;
  while (true) {
    bool moved = false;
    fds.clear();
    for (const auto& relay : relays) {
      moved = relay->Turn() || moved;
      if (relay->ended()) return SayFarewell(relays);
      fds.push_back(relay->awaited());
    }
    for (const auto& of_link : beats) of_link->Turn(Clock::now(), options.silence_ms);
    ++progress->calls;
    pause.After(moved, &fds);
  }
}

}  // namespace lorad::worker
