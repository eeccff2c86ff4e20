#include "server/answers/pieces.h"

#include <utility>

namespace lorad::server {

Pieces::Pieces(const v1::GenerateRequest& request, const PreparedAsks& prepared,
               GenerationStarted started)
    : prepared_(prepared), started_(std::move(started)) {
  for (int i = 0; i < request.asks_size(); ++i) {
    const auto& stop = request.asks(i).stop();
    answers_.push_back({.text = storage::TextStream(prepared.model->text.tokenizer.get(),
                                                    {stop.begin(), stop.end()}),
                        .prompt_tokens = static_cast<int32_t>(
                            prepared.start.asks[static_cast<size_t>(i)].prompt.size())});
  }
  seen_.resize(answers_.size());
}

ReadGeneration Pieces::Next() const { return {started_.name, seen_, ended_}; }

void Pieces::Take(const GenerationNews::Piece& piece, std::vector<v1::GenerateResponse>* messages) {
  const auto index = static_cast<size_t>(piece.index);
  Answer& answer = answers_[index];
  if (answer.ended) return;
  seen_[index] += static_cast<int32_t>(piece.tokens.size());
  answer.tokens += static_cast<int32_t>(piece.tokens.size());
  const bool last = piece.finish != v1::GenerateResponse::FINISH_REASON_UNSPECIFIED;
  v1::GenerateResponse message;
  message.set_index(piece.index);
  message.set_text(answer.text.Add(piece.tokens, last));
  message.mutable_token_ids()->Add(piece.tokens.begin(), piece.tokens.end());
  message.mutable_log_probabilities()->Add(piece.log_probabilities.begin(),
                                           piece.log_probabilities.end());
  if (!std::exchange(answer.begun, true)) {
    message.set_step(started_.steps[index]);
    message.set_reference(prepared_.references[index]);
  }
  if (last || answer.text.stopped()) {
    answer.ended = true;
    ended_.push_back(piece.index);
    message.set_finish_reason(answer.text.stopped() ? v1::GenerateResponse::STOP : piece.finish);
    message.set_prompt_tokens(answer.prompt_tokens);
    message.set_completion_tokens(answer.tokens);
  }
  messages->push_back(std::move(message));
}

std::vector<v1::GenerateResponse> Pieces::Take(const GenerationNews& news) {
  std::vector<v1::GenerateResponse> messages;
  for (const GenerationNews::Piece& piece : news.pieces) Take(piece, &messages);
  if (!news.waiting.empty()) messages.emplace_back().set_waiting(news.waiting);
  return messages;
}

}  // namespace lorad::server
