#pragma once

#include <zlib.h>

#include <catch2/catch.hpp>
#include <string>

namespace lorad::client {

// The text as a gzip file of one member.
inline std::string Gzip(const std::string& text) {
  z_stream zip = {};
  REQUIRE(deflateInit2(&zip, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&zip, text.size()) + 64, '\0');
  zip.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zip.avail_in = static_cast<uInt>(text.size());
  zip.next_out = reinterpret_cast<Bytef*>(out.data());
  zip.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&zip, Z_FINISH) == Z_STREAM_END);
  out.resize(zip.total_out);
  deflateEnd(&zip);
  return out;
}

}  // namespace lorad::client
