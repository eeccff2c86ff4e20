// Which stage or GPU does what when, as a value; as text, as a Chrome trace and as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lorad::planner {

// A row of the picture: one stream of one stage, or one GPU. Tracks of a group (a process in
// Chrome's words) stand together.
struct Track {
  std::string group;  // "stage 0"
  std::string name;   // "compute"

  bool operator==(const Track&) const = default;
};

struct Bar {
  int track = 0;
  double start_ms = 0;
  double end_ms = 0;
  std::string name;  // "F3"
  std::string kind;  // bars of a kind share their colour: "forward"

  bool operator==(const Bar&) const = default;
};

// Bars of a track do not overlap. Milliseconds from the start, finite and not negative.
struct Timeline {
  std::string title;
  std::vector<Track> tracks;
  std::vector<Bar> bars;  // in any order

  bool operator==(const Timeline&) const = default;
};

// A line for each track of its bars' times, `columns` characters of drawing (>= 10): each shows the
// first letter of the bars that fill most of its time, '.' where it is mostly idle.
std::string ToText(const Timeline& timeline, int columns = 100);
// A line for each bar: "stage 0 compute 0.000 1.500 F0".
std::string ToList(const Timeline& timeline);
// Trace Event Format: open it in chrome://tracing or ui.perfetto.dev.
std::string ToChromeTrace(const Timeline& timeline);
// A picture with the time below and the kinds' colours beside; opens in any browser.
std::string ToSvg(const Timeline& timeline);

}  // namespace lorad::planner
