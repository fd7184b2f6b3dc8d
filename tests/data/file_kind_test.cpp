// Files that people give by mistake are recognised.
#include "data/formats/file_kind.h"

#include <string>

#include "support/catch.h"

namespace {

std::string kind_of(const std::string& text) {
  return dp::recognised({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

TEST_CASE("PyTorch's files, pickles, archives and HTML pages are recognised by their first bytes") {
  CHECK(kind_of("PK\x03\x04rest") == "a zip archive, such as torch.save writes");
  for (const char* begin : {"\x80\x02}q", "\x80\x03}q", "\x80\x04\x95", "\x80\x05\x95"})
    CHECK(kind_of(begin) == "a Python pickle, such as older torch.save writes");
  CHECK(kind_of("\x1f\x8b\x08") == "a gzip archive");
  CHECK(kind_of("\x89HDF\r\n") == "an HDF5 file, such as Keras writes");
  for (const char* page : {"<!DOCTYPE html>", "\n  <html lang=x>", "<!doctype HTML", "\xef\xbb\xbf\t\r\n<HTML>"})
    CHECK(kind_of(page) == "an HTML page, so the download has failed");
}

TEST_CASE("other bytes are not taken for something") {
  for (const char* bytes : {"", "P", "{\"a\":1}", "\x08\x03", "<svg", "html"}) CHECK(kind_of(bytes).empty());
}

}  // namespace
