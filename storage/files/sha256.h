#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace lorad::storage {

// SHA-256 of a stream of bytes.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(std::string_view bytes);
  // 64 lower-case hexadecimal digits. Ends the object's use.
  std::string HexDigest();

  static std::string Of(std::string_view bytes);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace lorad::storage
