// What happens in a history of a site: clients come, and calamities strike.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/site.h"
#include "tests/sim/site_clients.h"
#include "tests/sim/site_watcher.h"

namespace lorad::sim {

// Whom and what a history has.
struct Stage {
  explicit Stage(const SiteOptions& options) : site(options) {}

  Site site;
  Census census;
  std::vector<std::unique_ptr<JobClient>> jobs;
  std::vector<std::unique_ptr<Client>> others;
  std::vector<std::unique_ptr<Watcher>> watchers;
};

struct Happening {
  int number = 0;     // within its history
  int64_t at_us = 0;  // since the begin of the history
  int kind = 0;
  uint64_t a = 0, b = 0;  // what exactly: drawn beforehand, so that one is as it is without others
};

// What kinds there are, numbered from 0: clients first, then calamities.
int CountKinds();
int CountClientKinds();
const char* NameOfKind(int kind);
constexpr int kJobKind = 0;  // a client that creates a job

void Happen(Stage& stage, const Happening& happening);
// From here on nothing goes wrong any more: what would still strike, does not.
void Calm(Stage& stage);

}  // namespace lorad::sim
