// Histories of a site: what happens in one is a list, drawn from a seed before it begins, so that
// parts of it can be left out and the rest stays as it was.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/happenings.h"
#include "tests/sim/shrink.h"

namespace lorad::sim {

struct History {
  SiteOptions site;
  Rates rates;
  std::vector<Happening> happenings;  // by time, numbered from 0
  int workers_min = 1;                // with fewer some job would fit nowhere
};

// One seed in kStagesEvery has base models that need several workers, one in kRestlessEvery has
// workers and coordinators that die for a minute, one in kTalkativeEvery has jobs that come while
// the only worker answers, one in kBesiegedEvery asks that come while jobs do, one after the
// other, one in kJostlingEvery long jobs of more base models than workers, which take each other's
// places, one in kLopsidedEvery jobs of unlike length and few base models, which leave some
// workers before others, and one in kUnlikeEvery a stream of jobs among whom some fit the largest
// worker alone.
History DrawHistory(uint64_t seed);  // draw_history.cc
inline constexpr uint64_t kStagesEvery = 4, kRestlessEvery = 64, kTalkativeEvery = 64,
                          kBesiegedEvery = 128, kJostlingEvery = 32, kLopsidedEvery = 32,
                          kUnlikeEvery = 64;
// Of those of stages one in so many has one worker more, the first by name, that no other can
// reach, one in so many one that only small messages reach, and as many have links that are so for
// a while.
inline constexpr uint64_t kIsolatedEvery = 8, kNarrowEvery = 16;
// Of histories that have found what the first thousands do not. Mutations hold those that found a
// defect of lorad's to it, should histories be drawn otherwise one day.
inline constexpr uint64_t kFailedOnce[] = {
    601358,  601659,   606798,   607242,   608288,   612714,   614848,   619400,
    629234,  632262,   633514,   639768,   726154,   728172,   731508,   735280,
    1013478, 1507,     10058,    20790,    3882,     8062,     41632,    3003398,
    5236540, 10001701, 10111461, 10401325, 10403172, 10413282, 10418708, 10460325};

// With these of its happenings alone, and so many of its workers, or workers_min.
History Part(const History& history, const std::vector<int>& numbers, int workers);
std::vector<int> NumbersOf(const History& history);

// A line for each happening, and the command that plays it again.
std::string ToText(const History& history);

// Plays it to its end: after the last calamity everything must end within a bound, as it should.
// What does not is a failed assertion.
Tally Play(const History& history);

// The least of it that still fails: `fails` is asked at most so many times.
History ShrinkHistory(const History& history, const std::function<bool(const History&)>& fails,
                      int tries_max);

}  // namespace lorad::sim
