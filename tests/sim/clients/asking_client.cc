#include "tests/sim/clients/asking_client.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lorad::sim {

using server::GenerationNews;
using server::GenerationStarted;

AskingClient::AskingClient(Site& site, std::vector<server::AskedAnswer> asks)
    : Client(site), asks_(std::move(asks)), seen_(asks_.size()) {
  Then([this] { return Next(); },
       [this](const absl::StatusOr<server::ReplyValue>& reply) { return Take(reply); });
}

server::Request AskingClient::Next() const {
  if (started_.name.empty()) return server::StartGeneration{asks_};
  return server::ReadGeneration{started_.name, seen_, ended_};
}

std::string AskingClient::ContentOf(size_t index) const {
  const server::AskedAnswer& ask = asks_[index];
  if (ask.job.empty()) return "";
  return absl::StrCat("weights:checkpoints/", ask.job, "/", started_.steps[index]);
}

void AskingClient::TakePiece(const GenerationNews::Piece& piece) {
  const auto index = static_cast<size_t>(piece.index);
  REQUIRE(index < asks_.size());
  REQUIRE(piece.tokens.size() == piece.log_probabilities.size());
  const server::AskedAnswer& ask = asks_[index];
  for (const int32_t token : piece.tokens) {
    const int64_t tokens = std::ssize(ask.prompt) + seen_[index]++;
    INFO("answer " << index << " of " << started_.name << ", behind " << tokens << " tokens");
    REQUIRE(token == NextToken(ContentOf(index), ask.seed, tokens));
  }
  if (piece.finish == v1::GenerateResponse::FINISH_REASON_UNSPECIFIED) return;
  REQUIRE(piece.finish == v1::GenerateResponse::LENGTH);
  REQUIRE(seen_[index] == ask.max_tokens);
  REQUIRE(std::ranges::count(ended_, piece.index) == 0);
  ended_.push_back(piece.index);
}

void AskingClient::EndWait() {
  if (since_us_ >= 0) {
    INFO(started_.name << " of '" << asks_[0].base_model << "' waited since " << since_us_
                       << " us");
    REQUIRE(site_.SucceededOfThoseAfter(since_us_) <= kPassedMax);
  }
  since_us_ = site_.now_us();
}

bool AskingClient::Take(const absl::StatusOr<server::ReplyValue>& reply) {
  if (!reply.ok()) {
    EndWait();
    since_us_ = -1;
    // Of what is gone, or has no checkpoint yet; or the coordinator was started again meanwhile. One
    // that asks twice at once is told that it reads already.
    INFO(started_.name << ": " << reply.status());
    const bool may_be =
        absl::IsNotFound(reply.status()) || absl::IsFailedPrecondition(reply.status()) ||
        absl::IsResourceExhausted(reply.status()) || absl::IsDataLoss(reply.status());
    REQUIRE(may_be);
    if (started_.name.empty() || ++tries_ > 1) return true;
    started_ = {};
    seen_.assign(asks_.size(), 0);
    ended_.clear();
    return false;
  }
  if (const auto* started = std::get_if<GenerationStarted>(&*reply)) {
    REQUIRE(started->steps.size() == asks_.size());
    started_ = *started;
    EndWait();
    return false;
  }
  const auto& news = std::get<GenerationNews>(*reply);
  if (!news.pieces.empty()) EndWait();
  for (const GenerationNews::Piece& piece : news.pieces) TakePiece(piece);
  REQUIRE(news.over == (ended_.size() == asks_.size() && news.pieces.empty()));
  return news.over;
}

}  // namespace lorad::sim
