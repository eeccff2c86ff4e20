// Those who ask adapters and base models, in stories.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/generations/generations.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {

using sim::NextToken;

// 30 steps, a checkpoint every 2.
inline v1::Job LongJob() {
  v1::Job job = World::NewJob();
  job.mutable_training()->set_epochs(10);
  return job;
}

inline AskedAnswer AskBase(uint64_t seed = 1, int32_t max_tokens = 6) {
  AskedAnswer ask;
  ask.base_model = "m";
  ask.prompt = {3, 1, 4, 1, 5};
  ask.max_tokens = max_tokens;
  ask.seed = seed;
  return ask;
}

inline AskedAnswer AskJob(const std::string& job, uint64_t seed = 1, int32_t max_tokens = 6) {
  AskedAnswer ask = AskBase(seed, max_tokens);
  ask.base_model = "";
  ask.job = job;
  return ask;
}

inline std::string ContentOf(const std::string& job, int64_t step) {
  return "weights:checkpoints/" + job + "/" + std::to_string(step);
}

// What the answer is, whoever computes it.
inline std::vector<int32_t> Expected(const std::string& content, const AskedAnswer& ask) {
  std::vector<int32_t> tokens;
  while (std::ssize(tokens) < ask.max_tokens) {
    tokens.push_back(NextToken(content, ask.seed, std::ssize(ask.prompt) + std::ssize(tokens)));
    if (std::ranges::count(ask.ends, tokens.back()) > 0) break;
  }
  return tokens;
}

// A client that reads to the end.
class Reader {
 public:
  Reader(World& world, std::vector<AskedAnswer> asks) : world_(world), tokens_(asks.size()) {
    finish_.resize(asks.size());
    world.Ask(StartGeneration{std::move(asks)}, [this](absl::StatusOr<ReplyValue> reply) {
      if (!reply.ok()) return End(reply.status());
      started_ = std::get<GenerationStarted>(*reply);
      Read();
    });
  }
  bool ended() const { return status_.has_value(); }
  const absl::Status& status() const { return *status_; }
  const GenerationStarted& started() const { return started_; }
  const std::vector<int32_t>& tokens(size_t i) const { return tokens_[i]; }
  v1::GenerateResponse::FinishReason finish(size_t i) const { return finish_[i]; }
  const std::vector<std::string>& waiting() const { return waiting_; }
  void Stop(int32_t index) { ended_.push_back(index); }
  // It asks for nothing more.
  void Vanish() { vanished_ = true; }
  uint64_t reading() const { return reading_; }

 private:
  void End(absl::Status status) { status_ = std::move(status); }
  void Read() {
    if (vanished_) return;
    ReadGeneration read{started_.name, {}, ended_};
    for (const auto& tokens : tokens_) read.seen.push_back(static_cast<int32_t>(tokens.size()));
    reading_ = world_.Ask(std::move(read), [this](absl::StatusOr<ReplyValue> reply) {
      if (!reply.ok()) return End(reply.status());
      const auto& news = std::get<GenerationNews>(*reply);
      for (const GenerationNews::Piece& piece : news.pieces) {
        auto& tokens = tokens_[static_cast<size_t>(piece.index)];
        tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
        CHECK(piece.log_probabilities.size() == piece.tokens.size());
        finish_[static_cast<size_t>(piece.index)] = piece.finish;
        if (piece.finish != v1::GenerateResponse::FINISH_REASON_UNSPECIFIED) {
          ended_.push_back(piece.index);
        }
      }
      if (!news.waiting.empty()) waiting_.push_back(news.waiting);
      if (news.over) return End(absl::OkStatus());
      Read();
    });
  }

  World& world_;
  GenerationStarted started_;
  uint64_t reading_ = 0;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<v1::GenerateResponse::FinishReason> finish_;
  std::vector<int32_t> ended_;
  std::vector<std::string> waiting_;
  std::optional<absl::Status> status_;
  bool vanished_ = false;
};

inline v1::Job JobOf(const std::string& base_model, int32_t priority = 0) {
  v1::Job job = World::NewJob();
  job.set_base_model(base_model);
  job.set_priority(priority);
  return job;
}

}  // namespace lorad::server
