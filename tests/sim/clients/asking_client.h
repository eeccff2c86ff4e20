// A client that asks adapters and base models, and reads the answers to their end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/clients/site_clients.h"

namespace lorad::sim {

// So many jobs that come while it awaits a token may end before that is there: those of the first
// ten seconds, and what trains beside it.
inline constexpr int64_t kPassedMax = 10;

// What it is told is what is to be told, of each answer from its beginning on; the call ends with
// all answers whole, or with a status. Where the coordinator has forgotten it, it asks once more.
class AskingClient final : public Client {
 public:
  AskingClient(Site& site, std::vector<server::AskedAnswer> asks);

 private:
  server::Request Next() const;
  // Whether it has all.
  bool Take(const absl::StatusOr<server::ReplyValue>& reply);
  void TakePiece(const server::GenerationNews::Piece& piece);
  std::string ContentOf(size_t index) const;
  // Something has come, or nothing more will.
  void EndWait();

  const std::vector<server::AskedAnswer> asks_;
  server::GenerationStarted started_;
  std::vector<int32_t> seen_, ended_;
  int tries_ = 0;
  int64_t since_us_ = -1;  // it waits; -1: for nothing yet
};

}  // namespace lorad::sim
