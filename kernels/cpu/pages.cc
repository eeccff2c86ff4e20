#include "kernels/cpu/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace lorad::kernels::cpu {
namespace {

constexpr int64_t kLargePage = int64_t{2} << 20;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Makes every page resident, by writing where the kernel has no call for it (before 5.14).
void Populate(char* base, int64_t bytes, int64_t page) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(base, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) return;
#endif
  for (int64_t at = 0; at < bytes; at += page) *static_cast<volatile char*>(base + at) = 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> MakePagedArena(int64_t bytes) {
  assert(bytes >= 0);
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t size = RoundUp(bytes > 0 ? bytes : 1, page);
  // Room to begin at a large page's border; what is not used is given back at once.
  const int64_t mapped = size + kLargePage;
  void* map = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot map ", size,
                                            " bytes for the model and its adapters; lower the "
                                            "worker's memory budget or free memory"));
  }
  const int64_t address = reinterpret_cast<int64_t>(map);
  const int64_t begin = RoundUp(address, kLargePage);
  if (begin > address) munmap(map, static_cast<size_t>(begin - address));
  munmap(reinterpret_cast<void*>(begin + size),
         static_cast<size_t>(address + mapped - begin - size));
  char* base = reinterpret_cast<char*>(begin);
  madvise(base, static_cast<size_t>(size), MADV_HUGEPAGE);
  Populate(base, size, page);
  return std::make_unique<Arena>(Device::kCpu, base, size,
                                 [base, size] { munmap(base, static_cast<size_t>(size)); });
}

}  // namespace lorad::kernels::cpu
