#include "logging/log.h"

#include <fcntl.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/formatter.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "logging/stderr_sink.h"

namespace lorad::logging {
namespace {

constexpr char kTextPattern[] = "%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ %v";

// {"time":"2026-01-02T03:04:05.678Z","level":"info","message":"..."}
class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto since_epoch = message.time.time_since_epoch();
    const std::time_t seconds =
        std::chrono::duration_cast<std::chrono::seconds>(since_epoch).count();
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count() % 1000;
    std::tm utc;
    gmtime_r(&seconds, &utc);
    nlohmann::ordered_json line;
    line["time"] =
        fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                    utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, ms);
    const spdlog::string_view_t level = spdlog::level::to_string_view(message.level);
    line["level"] = std::string(level.data(), level.size());
    line["message"] = std::string(message.payload.data(), message.payload.size());
    const std::string text =
        line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

void HearLibraries() {
  gpr_set_log_function([](gpr_log_func_args* said) { spdlog::debug("gRPC: {}", said->message); });
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& said) {
        spdlog::debug("protobuf: {}", said);
      });
}

// A logger lives as long as any thread may log: spdlog shares it.
void Install(std::shared_ptr<spdlog::logger> logger) {
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  HearLibraries();
}

}  // namespace

void KeepStandardDescriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    // open() gives the lowest that is free, which is this one.
    if (fcntl(descriptor, F_GETFD) < 0) (void)!open("/dev/null", O_RDWR);
  }
}

void SetUp(Format format, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("lorad", std::make_shared<StderrSink>());
  if (format == Format::kJson) {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    logger->set_pattern(kTextPattern, spdlog::pattern_time_type::utc);
  }
  logger->set_level(spdlog::level::from_str(level));
  Install(std::move(logger));
}

void SetUpForWorker(bool supervised) {
  auto logger = std::make_shared<spdlog::logger>("lorad-worker", std::make_shared<StderrSink>());
  if (supervised) {
    logger->set_pattern("[%l] %v");
  } else {
    logger->set_pattern(kTextPattern, spdlog::pattern_time_type::utc);
  }
  Install(std::move(logger));
}

void PassOn(const std::string& worker, const std::string& line) {
  const std::size_t end = line.find("] ");
  spdlog::level::level_enum level = spdlog::level::info;
  std::string_view text = line;
  if (line.starts_with('[') && end != std::string::npos) {
    const std::string name = line.substr(1, end - 1);
    const auto said = spdlog::level::from_str(name);  // "off" for what is none
    if (said != spdlog::level::off) {
      level = said;
      text.remove_prefix(end + 2);
    }
  }
  spdlog::log(level, "[{}] {}", worker, text);
}

}  // namespace lorad::logging
