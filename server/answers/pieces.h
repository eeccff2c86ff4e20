// What comes of a generation, as the messages of its call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lorad/v1/adapters.pb.h"
#include "server/answers/asks.h"
#include "server/core/events/events.h"
#include "storage/datasets/text_stream.h"

namespace lorad::server {

// Belongs to one call; one thread at a time. It keeps what the next ReadGeneration is to say.
class Pieces {
 public:
  // `prepared` must outlive it.
  Pieces(const v1::GenerateRequest& request, const PreparedAsks& prepared,
         GenerationStarted started);

  // The messages that the news make.
  std::vector<v1::GenerateResponse> Take(const GenerationNews& news);
  ReadGeneration Next() const;
  const std::string& generation() const { return started_.name; }

 private:
  struct Answer {
    storage::TextStream text;
    int32_t prompt_tokens = 0;
    int32_t tokens = 0;
    bool begun = false;
    bool ended = false;
  };
  void Take(const GenerationNews::Piece& piece, std::vector<v1::GenerateResponse>* messages);

  const PreparedAsks& prepared_;
  const GenerationStarted started_;
  std::vector<Answer> answers_;
  std::vector<int32_t> seen_, ended_;
};

}  // namespace lorad::server
