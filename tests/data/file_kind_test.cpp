// Files that people give by mistake are recognised.
#include "data/formats/rgb_image.h"

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

TEST_CASE("images of other formats are recognised by their first bytes") {
  const auto of = [](const char* begin, std::size_t size) { return kind_of(std::string(begin, size)); };
  CHECK(of("RIFF\x24\0\0\0WEBPVP8 ", 16) == "a WebP image");
  CHECK(of("RIFF\x24\0\0\0WAVEfmt ", 16).empty());
  CHECK(of("BM\x36\x10\0\0\0\0\0\0\x36\0", 12) == "a BMP image");
  CHECK(of("BM\0\0\0\0\0\0{\"a", 11).empty());  // the length of a safetensors header
  for (const char* begin : {"GIF87a", "GIF89a"}) CHECK(kind_of(begin) == "a GIF image");
  for (const auto& tiff : {std::string("II*\0", 4), std::string("MM\0*", 4), std::string("II+\0", 4)})
    CHECK(kind_of(tiff + "rest") == "a TIFF image");
  for (const char* brand : {"avif", "avis"})
    CHECK(kind_of(std::string("\0\0\0\x20"
                              "ftyp",
                              8) +
                  brand) == "an AVIF image");
  for (const char* brand : {"heic", "heix", "mif1"})
    CHECK(kind_of(std::string("\0\0\0\x18"
                              "ftyp",
                              8) +
                  brand) == "a HEIC image");
  CHECK(of("\0\0\0\x18"
           "ftypisom",
           12) == "a video");
  CHECK(of("\0\0\0\x0cJXL \r\n", 10) == "a JPEG XL image");
  CHECK(of("\0\0\0\x0cjP  \r\n", 10) == "a JPEG 2000 image");
  CHECK(kind_of("8BPS") == "a Photoshop image");
  CHECK(kind_of("%PDF-1.7") == "a PDF document");
  CHECK(kind_of("version https://") == "a Git LFS pointer, so the file was not downloaded (run git lfs pull)");
}

TEST_CASE("other bytes are not taken for something") {
  for (const char* bytes : {"", "P", "{\"a\":1}", "\x08\x03", "<svg", "html"}) CHECK(kind_of(bytes).empty());
}

}  // namespace
