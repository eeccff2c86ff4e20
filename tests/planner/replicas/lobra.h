// LobRA's published figures (tests/planner/replicas/data/lobra) as the planner's values.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "planner/replicas/deploy.h"
#include "planner/replicas/layout.h"

namespace lorad::planner::lobra {

inline constexpr int kLayers = 32;           // of Llama2-7B; the profile is of one
inline constexpr int64_t kLongest = 16'384;  // tokens; longer sequences are cut

// Rows of numbers of a CSV file, its header left out.
std::vector<std::vector<double>> ReadTable(const std::string& name);

// One layer, forward and backward, at each tensor-parallel degree: fitted to all of the profile,
// all relative errors alike.
std::map<int, TimeCoefficients> FitProfile(double* mean_error = nullptr);

// Table 9 of the appendix.
struct StepTime {
  Layout layout;  // capacity: one sequence a microbatch, as measured
  int64_t length = 0;
  int64_t microbatches = 0;  // of a replica
  double seconds = 0;
  double predicted = 0;  // by the fitted profile, without a scale factor
};
std::vector<StepTime> ReadStepTimes();
// The one scale factor: the geometric mean of seconds / predicted.
double ScaleOf(const std::vector<StepTime>& times);

// Every layout with a known capacity, in the order of the file, its times scaled.
std::vector<Layout> Layouts(double scale);
int Find(const std::vector<Layout>& layouts, int tensor_parallel, int pipeline_stages);

// One data set of Table 4: a log-normal distribution with its mean and skewness (the kurtosis is
// what comes of it), rounded, from 1 to kLongest. A gamma distribution of the same two would have
// half of databricks-dolly shorter than one token.
struct Dataset {
  std::string name;
  double mean = 0;
  double skewness = 0;
  double kurtosis = 0;  // published
  int64_t batch = 0;
};
std::vector<Dataset> ReadDatasets(const std::vector<std::string>& names);
// exp(s^2) of the log-normal distribution with this skewness.
double ExpVariance(double skewness);
// The batches of `steps` steps.
std::vector<int64_t> DrawLengths(const std::vector<Dataset>& datasets, int64_t steps,
                                 std::mt19937_64* random);

// The six of the 7B setting, and the four of the scalability figures.
std::vector<Dataset> SixTasks();
std::vector<Dataset> FourTasks();

}  // namespace lorad::planner::lobra
