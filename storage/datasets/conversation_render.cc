#include "storage/datasets/conversation_render.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr std::string_view kReason = "DATASET_INVALID";
// Every turn of a conversation renders all before it; a row may make this much text on the way.
constexpr size_t kRenderedBytesMax = size_t{256} << 20;

TextSpan Span(size_t begin, size_t end) {
  return {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
}

// An assistant's turn: the text up to and with it, and where it begins.
struct Turn {
  size_t begin = 0;
  size_t end = 0;
  std::optional<std::string> text;  // [0, end); nothing where the whole conversation begins so
};

class Renderer {
 public:
  Renderer(const TextModel& model, const Conversation& conversation)
      : model_(model), conversation_(conversation), messages_(conversation.messages) {}

  absl::StatusOr<std::vector<RenderedRow>> Render(TrainOn train_on) {
    absl::StatusOr<RenderedChat> whole = RenderFirst(messages_.size(), false);
    if (!whole.ok()) return whole.status();
    whole_ = std::move(whole->text);
    if (train_on == TrainOn::kAll) return One({Span(0, whole_.size())}, false);
    if (model_.chat_template->marks_generation() && !conversation_.is_completion) {
      return RenderMarked(std::move(whole->generated));
    }
    return RenderTurns();
  }

 private:
  std::vector<RenderedRow> One(std::vector<TextSpan> trained, bool marked) {
    std::vector<RenderedRow> rows(1);
    rows[0] = {.text = std::move(whole_), .trained = std::move(trained), .marked = marked};
    return rows;
  }

  absl::StatusOr<std::vector<RenderedRow>> RenderMarked(std::vector<TextSpan> spans) {
    const size_t size = whole_.size();  // a mark inside of a macro may be counted beyond it
    std::erase_if(spans, [size](TextSpan s) { return s.begin == s.end || s.end > size; });
    if (spans.empty()) {
      return Refuse(kReason,
                    "the chat template has {% generation %} marks, and they mark nothing in this "
                    "conversation");
    }
    for (size_t turn = 0; turn < messages_.size(); ++turn) {
      if (messages_[turn].role != "assistant" || messages_[turn].trained) continue;
      absl::StatusOr<Turn> left = RenderTurn(turn);
      if (!left.ok()) return left.status();
      if (left->text.has_value()) {
        return Refuse(kReason, absl::StrCat("turn ", turn,
                                            ": the chat template renders it otherwise once more "
                                            "turns follow, so what its weight of 0 takes out "
                                            "cannot be told"));
      }
      // A mark may begin within the generation prompt, before the turn does.
      std::erase_if(spans, [&](TextSpan s) { return s.end > left->begin && s.begin < left->end; });
    }
    return One(std::move(spans), true);
  }

  // One sequence where no turn is rendered otherwise once others follow, else one for each turn, as
  // the model would have seen it.
  absl::StatusOr<std::vector<RenderedRow>> RenderTurns() {
    std::vector<Turn> turns;
    for (size_t turn = conversation_.first_trained; turn < messages_.size(); ++turn) {
      if (messages_[turn].role != "assistant" || !messages_[turn].trained) continue;
      absl::StatusOr<Turn> rendered = RenderTurn(turn);
      if (!rendered.ok()) return rendered.status();
      turns.push_back(*std::move(rendered));
    }
    const bool rewrites = std::ranges::any_of(turns, [](const Turn& t) { return !!t.text; });
    if (!rewrites) {
      std::vector<TextSpan> trained;
      for (const Turn& turn : turns) trained.push_back(Span(turn.begin, turn.end));
      return One(std::move(trained), false);
    }
    std::vector<RenderedRow> rows;
    for (Turn& turn : turns) {
      RenderedRow& row = rows.emplace_back();
      row.text = turn.text.has_value() ? *std::move(turn.text) : whole_.substr(0, turn.end);
      row.trained = {Span(turn.begin, turn.end)};
    }
    return rows;
  }

  absl::StatusOr<RenderedChat> RenderFirst(size_t count, bool add_generation_prompt) {
    absl::StatusOr<RenderedChat> chat =
        model_.chat_template->Render(std::span(messages_).first(count), conversation_.inputs,
                                     add_generation_prompt, model_.tokens);
    if (!chat.ok()) return chat.status();
    rendered_bytes_ += chat->text.size();
    if (rendered_bytes_ > kRenderedBytesMax) {
      return Refuse(kReason,
                    "the conversation is too long: its turns together render to more than "
                    "256 MiB");
    }
    return chat;
  }

  absl::StatusOr<Turn> RenderTurn(size_t turn) {
    absl::StatusOr<RenderedChat> before = RenderFirst(turn, true);
    if (!before.ok()) return before.status();
    Turn out;
    out.begin = before->text.size();
    std::string after;
    if (turn + 1 < messages_.size()) {
      absl::StatusOr<RenderedChat> until = RenderFirst(turn + 1, false);
      if (!until.ok()) return until.status();
      after = std::move(until->text);
    }
    const std::string& text = turn + 1 < messages_.size() ? after : whole_;
    if (!text.starts_with(before->text)) {
      return Refuse(kReason,
                    absl::StrCat("turn ", turn,
                                 ": the chat template renders the conversation with "
                                 "the answer otherwise than before it, so what to train on cannot "
                                 "be told"));
    }
    out.end = text.size();
    if (!whole_.starts_with(text)) out.text = std::move(after);
    return out;
  }

  const TextModel& model_;
  const Conversation& conversation_;
  const std::vector<ChatMessage>& messages_;
  std::string whole_;
  size_t rendered_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<RenderedRow>> RenderConversation(const TextModel& model,
                                                            const Conversation& conversation,
                                                            TrainOn train_on) {
  if (model.chat_template == nullptr) {
    return Refuse(kReason,
                  "the base model has no chat template: use rows of prompt and completion strings, "
                  "or a model that has one");
  }
  return Renderer(model, conversation).Render(train_on);
}

}  // namespace lorad::storage
