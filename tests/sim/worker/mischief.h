// What goes wrong between one worker and its coordinator: it is slow, it lies; its messages come
// twice, its stream breaks at any of them, its uploads are lost, refused or come twice. Stays with
// the worker's name when its process is started again.
#pragma once

#include <cstdint>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::sim {

class Mischief {
 public:
  using Header = worker::v1::UploadShardRequest::Header;

  // ---- what histories set ----

  int64_t slowness = 1;  // so many times as long for every order
  int lies = 0;          // so many are still to be told,
  int lie = 0;           // this one each time (lies.h)
  int shard_lies = 0;    // likewise
  int shard_lie = 0;
  bool broken = false;   // its device: what it computes is not finite, it says
  int claims = 0;        // so many times it says that it holds another epoch than it does
  int repeats = 0;       // so many reports come twice, which is no lie
  int cut_after = -1;    // so many go through, either way, then the stream breaks; -1: it does not
  int lost_uploads = 0;  // so many calls never arrive
  int refused_uploads = 0;  // so many end at the door, as by a certificate that is over
  int repeated_uploads = 0;
  bool hangs_uploads = false;  // none ends, nor is given up

  // ---- what comes of it ----

  bool CutsHere();
  worker::v1::Hello Introduce(const worker::v1::Hello& hello);
  std::vector<worker::v1::WorkerMessage> Tell(worker::v1::WorkerMessage message);
  std::vector<Header> Upload(const Header& header);
  // What it says next may not be what its worker says.
  bool distorts() const { return lies > 0; }
  int64_t lies_told() const { return lies_told_; }

 private:
  int64_t lies_told_ = 0;
};

}  // namespace lorad::sim
