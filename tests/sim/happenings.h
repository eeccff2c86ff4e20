// What happens in a history of a site: clients come, and calamities strike.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/clients/job_client.h"
#include "tests/sim/clients/site_clients.h"
#include "tests/sim/clients/site_watcher.h"
#include "tests/sim/site.h"

namespace lorad::sim {

// What share of a history's jobs is so.
struct Rates {
  double long_rows = 0;   // longer than what other jobs' groups are formed for
  double high_rank = 0;   // that not every worker has room for
  double owns = 0;        // trained with a model, a dataset or an adapter of its own
  double poisoned = 0;    // whose steps are not finite from some step on
  double deadly = 0;      // whose steps end their workers
  bool evaluates = true;  // some are evaluated
  uint64_t epochs_max = 3;
  uint64_t priorities = 3;  // from 0
  // Of base models of so many layers (models.h), each alike; 0: the tiny one. None: all are of
  // that.
  std::vector<int> layers;
};

// Whom and what a history has.
struct Stage {
  Stage(const SiteOptions& options, const Rates& shares) : site(options), rates(shares) {}

  Site site;
  const Rates rates;
  Census census;
  std::vector<std::unique_ptr<JobClient>> jobs;
  std::vector<std::unique_ptr<Client>> others;
  std::vector<std::unique_ptr<Watcher>> watchers;
};

// Learning rates of jobs that are poisoned, and deadly.
inline constexpr double kFiniteRateMax = 1, kSurvivedRateMax = 100;

struct Happening {
  int number = 0;     // within its history
  int64_t at_us = 0;  // since the begin of the history
  int kind = 0;
  uint64_t a = 0, b = 0;  // what exactly: drawn beforehand, so that one is as it is without others
};

struct Kind {
  const char* name;
  void (*happen)(Stage& stage, const Happening& h);
  bool spares_workers = false;  // none is lost by it
  bool of_stages = false;       // strikes groups of several workers
  bool of_few = false;          // in few histories, which have it besides what others have
};

// What kinds there are, numbered from 0: clients first, then calamities (calamities.cc), those of
// few last.
std::span<const Kind> Calamities();
int CountKinds();
int CountClientKinds();
const char* NameOfKind(int kind);
inline constexpr int kJobKind = 0;     // a client that creates a job
inline constexpr int kCrowdKind = 1;   // one that creates very many
inline constexpr int kOthersKind = 2;  // the first of the others
inline constexpr int kAsksKind = 7;    // one that asks adapters
inline constexpr int kFinishKind = 8;  // the last: one that has a job finish

void Happen(Stage& stage, const Happening& happening);
// From here on nothing goes wrong any more: what would still strike, does not.
void Calm(Stage& stage);

}  // namespace lorad::sim
