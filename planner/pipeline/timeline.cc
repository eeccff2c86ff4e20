#include "planner/pipeline/timeline.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace lorad::planner {
namespace {

double EndOf(const Timeline& timeline) {
  double end = 0;
  for (const Bar& bar : timeline.bars) end = std::max(end, bar.end_ms);
  return end;
}

std::string NameOf(const Track& track) {
  return track.name.empty() ? track.group : absl::StrCat(track.group, " ", track.name);
}

// By track, then time.
std::vector<const Bar*> Sorted(const Timeline& timeline) {
  std::vector<const Bar*> bars;
  for (const Bar& bar : timeline.bars) {
    assert(bar.track >= 0 && static_cast<size_t>(bar.track) < timeline.tracks.size());
    bars.push_back(&bar);
  }
  std::stable_sort(bars.begin(), bars.end(), [](const Bar* a, const Bar* b) {
    return std::pair(a->track, a->start_ms) < std::pair(b->track, b->start_ms);
  });
  return bars;
}

// The columns of one track: the letter with the largest share of each.
class Row {
 public:
  Row(size_t columns, double column_ms) : column_ms_(column_ms), shares_(columns) {}

  void Draw(const Bar& bar) {
    if (column_ms_ <= 0) return;
    const bool plain = !bar.name.empty() && bar.name.front() > ' ' && bar.name.front() <= '~';
    const char letter = plain ? bar.name.front() : '#';  // no piece of a longer character
    for (size_t i = static_cast<size_t>(bar.start_ms / column_ms_); i < shares_.size(); ++i) {
      const double start = static_cast<double>(i) * column_ms_;
      if (start >= bar.end_ms) break;
      shares_[i][letter] +=
          std::min(bar.end_ms, start + column_ms_) - std::max(bar.start_ms, start);
    }
  }

  std::string Text() const {
    std::string text;
    for (const std::map<char, double>& shares : shares_) {
      double idle = column_ms_, largest = 0;
      char letter = '.';
      for (const auto& [candidate, share] : shares) {
        idle -= share;
        if (share > largest) largest = share, letter = candidate;
      }
      text += idle > largest ? '.' : letter;
    }
    return text;
  }

 private:
  const double column_ms_;
  std::vector<std::map<char, double>> shares_;
};

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return absl::StrReplaceAll(out, {{"\uFFFE", "?"}, {"\uFFFF", "?"}});  // no characters of XML
}

// Colour-blind safe (Okabe and Ito), then again from the start.
std::string ColourOf(size_t kind) {
  constexpr const char* kColours[] = {"#56B4E9", "#E69F00", "#009E73", "#F0E442",
                                      "#CC79A7", "#0072B2", "#D55E00", "#999999"};
  return kColours[kind % std::size(kColours)];
}

// Kinds in the order of their first bars.
std::vector<std::string> KindsOf(const Timeline& timeline) {
  std::vector<std::string> kinds;
  for (const Bar* bar : Sorted(timeline)) {
    if (std::find(kinds.begin(), kinds.end(), bar->kind) == kinds.end()) kinds.push_back(bar->kind);
  }
  return kinds;
}

constexpr double kRow = 22, kLeft = 130, kTop = 46, kWidth = 1200;

// Ticks at 1, 2 or 5 times a power of ten, at most twelve of them.
double TickOf(double end_ms) {
  double tick = 1e-6;
  for (int i = 0; tick * 12 < end_ms; ++i) tick *= i % 3 == 1 ? 2.5 : 2;
  return tick;
}

std::string Axis(double end_ms, double scale, double bottom) {
  std::string svg;
  const double tick = TickOf(end_ms);
  for (int i = 0; end_ms > 0 && i * tick <= end_ms; ++i) {
    const double x = kLeft + i * tick * scale;
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%.1f\" y1=\"%.0f\" x2=\"%.1f\" y2=\"%.0f\" stroke=\"#ddd\"/>"
                          "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.6g</text>\n",
                          x, kTop, x, bottom, x, bottom + 14, i * tick);
  }
  return svg;
}

}  // namespace

std::string ToText(const Timeline& timeline, int columns) {
  assert(columns >= 10);
  const double end = EndOf(timeline);
  const double column_ms = end / columns;
  std::vector<Row> rows(timeline.tracks.size(), Row(static_cast<size_t>(columns), column_ms));
  for (const Bar* bar : Sorted(timeline)) rows[static_cast<size_t>(bar->track)].Draw(*bar);
  size_t width = 0;
  for (const Track& track : timeline.tracks) width = std::max(width, NameOf(track).size());
  std::string text =
      absl::StrFormat("%s: %.6g ms, a column is %.3g ms\n", timeline.title, end, column_ms);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string name = NameOf(timeline.tracks[i]);
    name.resize(width, ' ');
    absl::StrAppend(&text, name, " |", rows[i].Text(), "|\n");
  }
  return text;
}

std::string ToList(const Timeline& timeline) {
  std::string text;
  for (const Bar* bar : Sorted(timeline)) {
    absl::StrAppendFormat(&text, "%s %.3f %.3f %s\n",
                          NameOf(timeline.tracks[static_cast<size_t>(bar->track)]), bar->start_ms,
                          bar->end_ms, bar->name);
  }
  return text;
}

std::string ToChromeTrace(const Timeline& timeline) {
  using nlohmann::ordered_json;
  ordered_json events = ordered_json::array();
  std::map<std::string, int> processes;
  std::vector<int> process_of;
  for (size_t i = 0; i < timeline.tracks.size(); ++i) {
    const Track& track = timeline.tracks[i];
    const auto [it, first] = processes.emplace(track.group, static_cast<int>(processes.size()));
    process_of.push_back(it->second);
    if (first) {
      events.push_back({{"name", "process_name"},
                        {"ph", "M"},
                        {"pid", it->second},
                        {"tid", 0},
                        {"args", {{"name", track.group}}}});
    }
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", it->second},
                      {"tid", i},
                      {"args", {{"name", track.name}}}});
  }
  for (const Bar* bar : Sorted(timeline)) {
    events.push_back({{"name", bar->name},
                      {"cat", bar->kind},
                      {"ph", "X"},
                      {"pid", process_of[static_cast<size_t>(bar->track)]},
                      {"tid", bar->track},
                      {"ts", bar->start_ms * 1000},  // microseconds
                      {"dur", (bar->end_ms - bar->start_ms) * 1000}});
  }
  const ordered_json trace = {{"displayTimeUnit", "ms"},
                              {"otherData", {{"title", timeline.title}}},
                              {"traceEvents", std::move(events)}};
  return trace.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string ToSvg(const Timeline& timeline) {
  const double end = EndOf(timeline);
  const double scale = end > 0 ? kWidth / end : 0;
  const double bottom = kTop + kRow * static_cast<double>(timeline.tracks.size());
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"8\" y=\"16\" font-size=\"13\">%s</text>\n",
      kLeft + kWidth + 20, bottom + 34, Escaped(timeline.title));
  const std::vector<std::string> kinds = KindsOf(timeline);
  for (size_t i = 0; i < kinds.size(); ++i) {
    const double x = kLeft + 110.0 * static_cast<double>(i);
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%.0f\" y=\"24\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                          "<text x=\"%.0f\" y=\"34\">%s</text>\n",
                          x, ColourOf(i), x + 16, Escaped(kinds[i]));
  }
  absl::StrAppend(&svg, Axis(end, scale, bottom));
  for (size_t i = 0; i < timeline.tracks.size(); ++i) {
    absl::StrAppendFormat(&svg, "<text x=\"8\" y=\"%.0f\">%s</text>\n",
                          kTop + kRow * static_cast<double>(i) + 15,
                          Escaped(NameOf(timeline.tracks[i])));
  }
  for (const Bar* bar : Sorted(timeline)) {
    const double width = (bar->end_ms - bar->start_ms) * scale;
    const double x = kLeft + bar->start_ms * scale;
    const double y = kTop + kRow * bar->track;
    const size_t kind =
        static_cast<size_t>(std::find(kinds.begin(), kinds.end(), bar->kind) - kinds.begin());
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\" fill=\"%s\" "
                          "stroke=\"white\" stroke-width=\"0.3\"><title>%s: %.6g to %.6g ms"
                          "</title></rect>\n",
                          x, y + 2, width, kRow - 4, ColourOf(kind), Escaped(bar->name),
                          bar->start_ms, bar->end_ms);
    if (width > 7.0 * static_cast<double>(bar->name.size()) + 2) {
      absl::StrAppendFormat(&svg, "<text x=\"%.2f\" y=\"%.0f\">%s</text>\n", x + 2, y + 15,
                            Escaped(bar->name));
    }
  }
  return svg + "</svg>\n";
}

}  // namespace lorad::planner
