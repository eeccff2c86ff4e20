#include "server/feed/feed.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "server/feed/fill.h"
#include "server/feed/row_order.h"
#include "storage/datasets/dataset_encode.h"
#include "storage/files/errors.h"
#include "storage/models/model_directory.h"

namespace lorad::server::feed {
namespace {

using storage::At;

// Of the lines of bad rows in a summary: it becomes part of an error, and those travel in 8 KiB.
constexpr size_t kLinesBytesMax = 2000;

storage::EncodeOptions OptionsOf(const RowSource& source) {
  storage::EncodeOptions options;
  options.max_length = source.max_length;
  if (source.overflow == v1::TrainingConfig::ERROR) options.overflow = storage::Overflow::kRefuse;
  if (source.overflow == v1::TrainingConfig::SKIP) options.overflow = storage::Overflow::kSkip;
  if (source.train_on == v1::TrainingConfig::ALL) options.train_on = storage::TrainOn::kAll;
  return options;
}

TokenCacheKey KeyOf(const RowSource& source) {
  const std::string& chat_template = source.chat_template_sha256;
  return {source.dataset_sha256,
          absl::StrCat(source.model_fingerprint, chat_template.empty() ? "" : "+", chat_template),
          OptionsOf(source)};
}

std::string EntryPrefix(const std::string& dataset_path) {
  return absl::StrCat(dataset_path, "\n");
}

std::string EntryName(const RowSource& source) {
  return absl::StrCat(EntryPrefix(source.dataset_path), KeyOf(source).ToText());
}

// The reason why, where the status does not say one itself. A full disk is one, whoever met it.
absl::Status Because(std::string_view reason, absl::Status status) {
  if (absl::IsCancelled(status) || status.GetPayload(storage::Absl(storage::kReasonPayload))) {
    return status;
  }
  if (absl::IsResourceExhausted(status)) reason = "DISK_FULL";
  status.SetPayload(storage::Absl(storage::kReasonPayload), absl::Cord(storage::Absl(reason)));
  return status;
}

// A check of the source's rows makes them ready.
absl::Status NotReady(const RowSource& source, const absl::Status& status) {
  return Because("ROWS_NOT_READY",
                 absl::UnavailableError(absl::StrCat("the tokens of dataset '", source.dataset,
                                                     "' are made again: ", status.message())));
}

records::RowsSummary Summarize(const storage::DatasetReport& report) {
  records::RowsSummary summary;
  summary.set_rows(report.sequences);
  summary.set_tokens(report.tokens);
  summary.set_trained_tokens(report.trained_tokens);
  summary.set_truncated_rows(report.truncated_rows);
  summary.set_skipped_rows(report.skipped_rows);
  summary.set_longest_tokens(report.longest_tokens);
  summary.set_error_count(report.error_count);
  if (!report.errors.empty()) {
    summary.set_error_line(report.errors.front().line);
    summary.set_error_reason(report.errors.front().reason);
  }
  summary.set_untrained_lines(storage::ToText(report.untrained_lines, kLinesBytesMax));
  return summary;
}

// A unit that asks for what is not there.
absl::Status NotPlanned(const std::string& message) {
  return Because("WINDOW_NOT_PLANNED", absl::InvalidArgumentError(message));
}

}  // namespace

// A source's tokens.
struct Feed::Entry {
  std::mutex making ABSL_ACQUIRED_BEFORE(opening);  // held while rows are tokenized: takes long
  std::mutex opening ABSL_ACQUIRED_BEFORE(mutex);   // while a cache is opened: its bytes are hashed
  std::mutex mutex;
  // Null until built; shared with plans in flight.
  std::shared_ptr<const TokenCache> cache ABSL_GUARDED_BY(mutex);

  std::shared_ptr<const TokenCache> Cache() {
    std::lock_guard lock(mutex);
    return cache;
  }
  // Whoever asks next opens it again, which checks all of it.
  void Drop(const std::shared_ptr<const TokenCache>& damaged) {
    std::lock_guard lock(mutex);
    if (cache == damaged) cache = nullptr;
  }
};

// The rows of one epoch in their order.
struct Feed::Order {
  std::once_flag made;
  std::vector<int64_t> rows;
};

Feed::Feed(const FeedOptions& options, storage::Files& files, std::function<int64_t()> now_us)
    : options_(options),
      files_(files),
      now_us_(std::move(now_us)),
      entries_(options.open_bytes_max, options.unused_us),
      orders_(options.orders_bytes_max, options.unused_us) {}
Feed::~Feed() = default;

// What is let go here is closed and freed without the lock.
std::shared_ptr<Feed::Entry> Feed::EntryOf(const RowSource& source) {
  const std::string name = EntryName(source);
  const int64_t now_us = now_us_();
  KeptByUse<std::string, Entry>::Values closed;
  KeptByUse<OrderKey, Order>::Values dropped;
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Entry> entry = entries_.Use(name, now_us);
  closed = entries_.TakeUnused(now_us);
  dropped = orders_.TakeUnused(now_us);
  return entry;
}

void Feed::Close(const std::string& dataset_path) {
  const std::string prefix = EntryPrefix(dataset_path);
  KeptByUse<std::string, Entry>::Values closed;
  std::lock_guard lock(mutex_);
  closed = entries_.TakeIf([&](const std::string& name) { return name.starts_with(prefix); });
}

size_t Feed::kept_caches() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

absl::StatusOr<std::shared_ptr<const TokenCache>> Feed::Open(const RowSource& source,
                                                             Entry& entry) {
  std::lock_guard one(entry.opening);
  if (auto open = entry.Cache(); open != nullptr) return open;
  const TokenCacheKey key = KeyOf(source);
  auto opened =
      TokenCache::Open(storage::JoinPath(options_.cache_dir, key.FileName()), key, files_);
  if (!opened.ok()) return opened.status();
  const std::shared_ptr<const TokenCache> cache = *std::move(opened);
  {
    std::lock_guard lock(entry.mutex);
    entry.cache = cache;
  }
  std::lock_guard lock(mutex_);
  entries_.Weigh(EntryName(source),
                 options_.open_bytes_max / options_.open_files_max + cache->memory_bytes());
  return cache;
}

std::shared_ptr<const std::vector<int64_t>> Feed::OrderOf(const OrderKey& key) {
  std::shared_ptr<Order> order;
  {
    std::lock_guard lock(mutex_);
    order = orders_.Use(key, now_us_());
    orders_.Weigh(key, std::get<0>(key) * static_cast<int64_t>(sizeof(int64_t)));
  }
  std::call_once(order->made, [&] { order->rows = std::apply(RowOrder, key); });
  return {order, &order->rows};
}

absl::StatusOr<storage::DatasetReport> Feed::Tokenize(const RowSource& source,
                                                      const std::atomic<bool>* cancelled) {
  absl::StatusOr<storage::ModelDirectory> directory =
      storage::ModelDirectory::OpenRegistered(source.model_path, source.model_fingerprint);
  if (!directory.ok()) return Because("MODEL_UNREADABLE", directory.status());
  absl::StatusOr<storage::TextModel> model = storage::LoadTextModel(
      *directory, source.chat_template ? std::string_view(*source.chat_template) : "");
  if (!model.ok()) return Because("MODEL_UNREADABLE", At(source.model_path, model.status()));
  if (absl::Status same = directory->CheckUnchanged(); !same.ok()) {
    return Because("MODEL_UNREADABLE", same);
  }
  if (absl::Status status = MakeRoom(); !status.ok()) return Because("ROWS_NOT_READ", status);
  const TokenCacheKey key = KeyOf(source);
  auto report =
      WriteTokenCache(files_, storage::JoinPath(options_.data_dir, source.dataset_path), *model,
                      key, storage::JoinPath(options_.cache_dir, key.FileName()), cancelled);
  if (report.ok()) return report;
  return Because("ROWS_NOT_READ", At(absl::StrCat("dataset ", source.dataset), report.status()));
}

absl::StatusOr<Feed::CheckedRows> Feed::Make(const RowSource& source,
                                             const std::atomic<bool>* cancelled) {
  const std::shared_ptr<Entry> entry = EntryOf(source);
  std::lock_guard one(entry->making);
  auto cache = Open(source, *entry);
  // Absent or damaged it is made again; no descriptor, or a share that is away, are neither.
  if (!cache.ok() && !absl::IsUnavailable(cache.status())) {
    absl::StatusOr<storage::DatasetReport> report = Tokenize(source, cancelled);
    if (!report.ok()) return report.status();
    if (report->error_count > 0) return CheckedRows{nullptr, *std::move(report)};
    cache = Open(source, *entry);
  }
  if (!cache.ok()) return Because("ROWS_NOT_READ", cache.status());
  return CheckedRows{*std::move(cache)};
}

// An open file stays readable without its name.
absl::Status Feed::MakeRoom() {
  if (absl::Status status = files_.MakeDirectory(options_.cache_dir); !status.ok()) return status;
  absl::StatusOr<std::vector<std::string>> names = files_.List(options_.cache_dir);
  if (!names.ok()) return names.status();
  std::erase_if(*names, [](const std::string& name) { return !name.ends_with(".tokens"); });
  uint64_t bytes = 0;
  for (const std::string& name : *names) {
    bytes += files_.Size(storage::JoinPath(options_.cache_dir, name)).value_or(0);
  }
  if (bytes <= options_.cache_bytes_max) return absl::OkStatus();
  for (const std::string& name : *names) {
    absl::Status status = files_.Remove(storage::JoinPath(options_.cache_dir, name));
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<records::RowsSummary> Feed::CheckRows(const RowSource& source,
                                                     const std::atomic<bool>* cancelled) {
  const absl::StatusOr<CheckedRows> checked = Make(source, cancelled);
  if (!checked.ok()) return checked.status();
  if (checked->cache == nullptr) return Summarize(checked->bad);
  const TokenCache& cache = *checked->cache;
  records::RowsSummary summary = Summarize(cache.report());
  double squares = 0;
  for (int64_t row = 0; row < cache.rows(); ++row) {
    const double tokens = static_cast<double>(cache.tokens(row));
    squares += tokens * tokens;
  }
  summary.set_squared_lengths(squares);
  return summary;
}

absl::StatusOr<Feed::OpenRows> Feed::Rows(const RowSource& source) {
  const std::shared_ptr<Entry> entry = EntryOf(source);
  auto cache = Open(source, *entry);
  if (absl::IsUnavailable(cache.status())) return Because("ROWS_NOT_READ", cache.status());
  if (!cache.ok()) return NotReady(source, cache.status());
  return OpenRows{entry, *std::move(cache)};
}

absl::Status Feed::Add(const RowSource& source, const OpenRows& open, int64_t sequence, int64_t row,
                       int64_t capacity_tokens, UnitRows* rows) {
  const int64_t tokens = open.cache->tokens(row);
  if (tokens > capacity_tokens) {
    return NotPlanned(absl::StrCat("job ", rows->unit.job, ": row ", row, " has ", tokens,
                                   " tokens; a microbatch holds ", capacity_tokens));
  }
  absl::StatusOr<CachedRow> read = open.cache->Read(row);
  if (!read.ok()) {
    open.entry->Drop(open.cache);
    return NotReady(source, read.status());
  }
  rows->unit.sequences.push_back({sequence, tokens, read->trained_tokens});
  rows->rows[sequence] = *std::move(read);
  return absl::OkStatus();
}

absl::StatusOr<UnitRows> Feed::OfUnit(const TrainUnit& unit, int64_t capacity_tokens) {
  const absl::StatusOr<OpenRows> open = Rows(unit.source);
  if (!open.ok()) return open.status();
  if (unit.step < 1 || unit.batch_size < 1) {
    return NotPlanned(
        absl::StrCat("job ", unit.job, ": step ", unit.step, " of batches of ", unit.batch_size));
  }
  UnitRows rows;
  rows.unit.job = unit.job;
  rows.unit.mode = planner::SegmentMode::kTrain;
  rows.unit.step = unit.step;
  rows.unit.learning_rate = unit.learning_rate;
  rows.unit.save = unit.save;
  const BatchPlace place = PlaceOfStep(open->cache->rows(), unit.batch_size, unit.step);
  const auto order = OrderOf({open->cache->rows(), unit.shuffle, unit.seed, place.epoch});
  for (int64_t i = place.begin; i < place.end; ++i) {
    absl::Status status =
        Add(unit.source, *open, i - place.begin, (*order)[i], capacity_tokens, &rows);
    if (!status.ok()) return status;
  }
  return rows;
}

absl::StatusOr<UnitRows> Feed::OfUnit(const EvaluateUnit& unit, int64_t capacity_tokens) {
  const absl::StatusOr<OpenRows> open = Rows(unit.source);
  if (!open.ok()) return open.status();
  const int64_t end = unit.first_sequence + unit.sequences;
  if (unit.first_sequence < 0 || unit.sequences < 1 || end > open->cache->rows()) {
    return NotPlanned(absl::StrCat("job ", unit.job, ": rows ", unit.first_sequence, " to ", end,
                                   " of ", open->cache->rows()));
  }
  UnitRows rows;
  rows.unit.job = unit.job;
  rows.unit.mode = planner::SegmentMode::kEvaluate;
  rows.unit.step = unit.step;
  for (int64_t row = unit.first_sequence; row < end; ++row) {
    absl::Status status = Add(unit.source, *open, row, row, capacity_tokens, &rows);
    if (!status.ok()) return status;
  }
  return rows;
}

absl::StatusOr<FeedWindow> Feed::Plan(const PlanInput& input, const std::function<bool()>& hurry) {
  planner::WindowInput request;
  request.capacity_tokens = input.capacity_tokens;
  request.first_microbatch = input.first_microbatch;
  request.stages = input.stages;
  request.in_flight = input.in_flight > 1 ? input.in_flight : 0;
  request.before = input.before;
  request.microbatch_cost_tokens = input.microbatch_cost_tokens;
  request.frees = input.frees;
  request.pack.cancelled = hurry;
  for (const LoadUnit& load : input.loads) {
    request.loads.emplace_back(load.slot.job(), load.step);
  }
  for (const SaveUnit& save : input.saves) request.saves.emplace_back(save.job, save.step);
  std::map<std::string, UnitRows> rows;
  FeedWindow window;
  const auto add = [&](const std::string& job, absl::StatusOr<UnitRows> of_unit) {
    if (!of_unit.ok()) {
      window.failures.push_back({job, of_unit.status()});
      return;
    }
    request.units.push_back(of_unit->unit);
    if (of_unit->unit.mode == planner::SegmentMode::kTrain) {
      window.lines.push_back(LinesOf(*of_unit));
    }
    rows[job] = *std::move(of_unit);
  };
  for (const TrainUnit& unit : input.trains) add(unit.job, OfUnit(unit, input.capacity_tokens));
  for (const EvaluateUnit& unit : input.evaluates) {
    add(unit.job, OfUnit(unit, input.capacity_tokens));
  }
  for (const GenerateUnit& unit : input.generates) request.units.push_back(UnitOf(unit));
  absl::StatusOr<planner::Window> planned =
      planner::PlanWindow(request, &window.packings, &window.window.left);
  if (!planned.ok()) return planned.status();
  for (size_t stage = 0; stage < planned->stages.size(); ++stage) {
    window.window.stages.push_back(FillWindow(input, *planned, stage, rows));
  }
  window.window.next_microbatch = NextMicrobatch(input, *planned);
  window.statistics = planner::Describe(*planned, input.capacity_tokens);
  return window;
}

}  // namespace lorad::server::feed
