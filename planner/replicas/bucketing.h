// Which lengths sequences are padded to (LobRA 4.3, dynamic bucketing). R boundaries out of the U
// multiples of `granularity` are chosen so that padding is least:
//   State[i][j] = min_{i' < i} State[i'][j - 1] + (N_i - N_i') u_i
// with u_i the boundaries, N_i the sequences no longer than u_i and State[i][j] the padded tokens
// of the first i intervals in j buckets (which differs from the padding by a constant). Empty
// intervals are left out, and since the cost obeys the quadrangle inequality the best i' rises with
// i: O(B log B + R U log U) instead of the paper's O(B + R U^2).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lorad::planner {

struct BucketingOptions {
  int buckets = 16;           // at most (R)
  int64_t granularity = 256;  // tokens; 1: boundaries are lengths that occur
  // A multiple beyond it is replaced by it, as long as the sequences are no longer: what a replica
  // can hold.
  int64_t longest = std::numeric_limits<int64_t>::max();
};

struct Bucketing {
  std::vector<int64_t> lengths;    // boundaries, rising; a sequence is padded to the next of them
  std::vector<int64_t> sequences;  // of each bucket
  int64_t tokens = 0;
  int64_t padded_tokens = 0;  // padding included

  // "256: 17, 512: 3; 4875 tokens padded to 5888"
  std::string ToText() const;
};

// The best; of equals the one with fewer buckets, then with lower boundaries. InvalidArgument for a
// length < 1, none at all, buckets or granularity < 1, or sums that overflow.
absl::StatusOr<Bucketing> ChooseBuckets(const std::vector<int64_t>& lengths,
                                        const BucketingOptions& options);
// With boundaries that are given (rising); empty buckets stay. InvalidArgument as above, and for a
// sequence longer than the last boundary.
absl::StatusOr<Bucketing> FillBuckets(const std::vector<int64_t>& lengths,
                                      const std::vector<int64_t>& boundaries);

}  // namespace lorad::planner
