// Files that people give by mistake are recognised.
#include "data/formats/file_kind.h"

#include <string>

#include "support/catch.h"

namespace {

std::string kind_of(const std::string& text) {
  return dp::recognised({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

TEST_CASE("PyTorch's files, pickles, archives and HTML pages are recognised by their first bytes") {
  CHECK_THAT(kind_of("PK\x03\x04rest"), Catch::Contains("torch.save"));
  CHECK_THAT(kind_of("\x80\x02}q"), Catch::Contains("pickle"));
  CHECK_THAT(kind_of("\x1f\x8b\x08"), Catch::Contains("gzip"));
  CHECK_THAT(kind_of("\x89HDF\r\n"), Catch::Contains("HDF5"));
  for (const char* page : {"<!DOCTYPE html>", "\n  <html lang=x>", "<!doctype HTML"})
    CHECK_THAT(kind_of(page), Catch::Contains("HTML") && Catch::Contains("download"));
}

TEST_CASE("other bytes are not taken for something") {
  for (const char* bytes : {"", "P", "{\"a\":1}", "\x08\x03", "<svg", "html"}) CHECK(kind_of(bytes).empty());
}

}  // namespace
