#include "tests/planner/replicas/lobra.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <fstream>
#include <sstream>

namespace lorad::planner::lobra {
namespace {

constexpr double kPi = 3.14159265358979323846;

std::vector<std::vector<std::string>> ReadCells(const std::string& name) {
  std::ifstream file("tests/planner/replicas/data/lobra/" + name);
  assert(file.good());
  std::vector<std::vector<std::string>> rows;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
  }
  return rows;
}

// Box and Muller's, so that the draw does not hang on a library.
double DrawNormal(std::mt19937_64* random) {
  const auto unit = [&] { return (static_cast<double>((*random)() >> 11) + 0.5) / (1ull << 53); };
  const double radius = std::sqrt(-2 * std::log(unit()));
  return radius * std::cos(2 * kPi * unit());
}

TimeCoefficients Scaled(const TimeCoefficients& t, double factor) {
  return {t.constant_ms * factor, t.token_ms * factor, t.squared_ms * factor};
}

}  // namespace

std::vector<std::vector<double>> ReadTable(const std::string& name) {
  std::vector<std::vector<double>> table;
  for (const std::vector<std::string>& row : ReadCells(name)) {
    table.emplace_back();
    for (const std::string& cell : row) table.back().push_back(std::stod(cell));
  }
  return table;
}

std::map<int, TimeCoefficients> FitProfile(double* mean_error) {
  struct Row {
    int tensor_parallel;
    Terms<3> terms;
    double ms;
  };
  std::vector<Row> rows;
  for (const std::vector<double>& row : ReadTable("profile_time_llama_7B.csv")) {
    const double length = row[1], count = row[2];
    rows.push_back(
        {static_cast<int>(row[0]), {1, count * length, count * length * length}, row[3]});
  }
  std::map<int, NonNegativeFit<3>> fits;
  for (const Row& row : rows) {
    fits[row.tensor_parallel].Observe(row.terms, row.ms, 1 / (row.ms * row.ms));
  }
  std::map<int, TimeCoefficients> layers;
  for (const auto& [degree, fit] : fits) {
    const Terms<3> x = fit.Fit();
    layers[degree] = {x[0], x[1], x[2]};
  }
  double errors = 0;
  for (const Row& row : rows) {
    const double predicted = layers[row.tensor_parallel].Ms({row.terms[1], row.terms[2]}, 1);
    errors += std::abs(predicted / row.ms - 1);
  }
  if (mean_error != nullptr) *mean_error = errors / static_cast<double>(rows.size());
  return layers;
}

std::vector<StepTime> ReadStepTimes() {
  const auto layers = FitProfile();
  std::vector<StepTime> times;
  for (const std::vector<double>& row : ReadTable("table9_step_times.csv")) {
    StepTime time;
    time.layout.tensor_parallel = static_cast<int>(row[0]);
    time.layout.pipeline_stages = static_cast<int>(row[1]);
    time.length = time.layout.capacity_tokens = static_cast<int64_t>(row[2]);
    time.microbatches = static_cast<int64_t>(row[3]);
    time.seconds = row[4];
    time.layout.stage_ms = Scaled(layers.at(time.layout.tensor_parallel),
                                  static_cast<double>(kLayers) / time.layout.pipeline_stages);
    time.predicted = ReplicaMs(time.layout, {time.length}, {time.microbatches}) / 1000;
    times.push_back(time);
  }
  return times;
}

double ScaleOf(const std::vector<StepTime>& times) {
  double sum = 0;
  for (const StepTime& time : times) sum += std::log(time.seconds / time.predicted);
  return std::exp(sum / static_cast<double>(times.size()));
}

std::vector<Layout> Layouts(double scale) {
  const auto layers = FitProfile();
  std::vector<Layout> layouts;
  for (const std::vector<double>& row : ReadTable("max_tokens_llama_7B_6tasks.csv")) {
    Layout layout;
    layout.tensor_parallel = static_cast<int>(row[0]);
    layout.pipeline_stages = static_cast<int>(row[1]);
    layout.capacity_tokens = static_cast<int64_t>(row[3]);
    layout.stage_ms =
        Scaled(layers.at(layout.tensor_parallel), scale * kLayers / layout.pipeline_stages);
    layouts.push_back(layout);
  }
  return layouts;
}

int Find(const std::vector<Layout>& layouts, int tensor_parallel, int pipeline_stages) {
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (layouts[i].tensor_parallel == tensor_parallel &&
        layouts[i].pipeline_stages == pipeline_stages) {
      return static_cast<int>(i);
    }
  }
  assert(false);
  return -1;
}

std::vector<Dataset> ReadDatasets(const std::vector<std::string>& names) {
  std::vector<Dataset> datasets;
  for (const std::string& name : names) {
    for (const std::vector<std::string>& row : ReadCells("table4_datasets.csv")) {
      if (row[0] != name) continue;
      datasets.push_back(
          {name, std::stod(row[1]), std::stod(row[2]), std::stod(row[3]), std::stoll(row[4])});
    }
  }
  assert(datasets.size() == names.size());
  return datasets;
}

// Skewness (w + 2) sqrt(w - 1) with w = exp(s^2), by halving.
double ExpVariance(double skewness) {
  double low = 1, high = 100;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    ((middle + 2) * std::sqrt(middle - 1) < skewness ? low : high) = middle;
  }
  return low;
}

std::vector<int64_t> DrawLengths(const std::vector<Dataset>& datasets, int64_t steps,
                                 std::mt19937_64* random) {
  std::vector<int64_t> lengths;
  for (int64_t step = 0; step < steps; ++step) {
    for (const Dataset& dataset : datasets) {
      const double variance = std::log(ExpVariance(dataset.skewness));
      const double mean = std::log(dataset.mean) - variance / 2;
      for (int64_t i = 0; i < dataset.batch; ++i) {
        const double length = std::exp(mean + std::sqrt(variance) * DrawNormal(random));
        lengths.push_back(std::clamp<int64_t>(std::llround(std::min(length, 1e9)), 1, kLongest));
      }
    }
  }
  return lengths;
}

std::vector<Dataset> SixTasks() {
  return ReadDatasets({"databricks-dolly-15k", "Evol-Instruct", "XSum", "CommitPackFT",
                       "MeetingBank", "python_code_instructions"});
}

std::vector<Dataset> FourTasks() {
  return ReadDatasets({"Evol-Instruct", "CommitPackFT", "BillSum", "PubMedQA"});
}

}  // namespace lorad::planner::lobra
