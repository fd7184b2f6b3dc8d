// SHA-256, by OpenSSL.
#pragma once

#include <openssl/evp.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dp {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(const void* data, std::size_t bytes) { check(EVP_DigestUpdate(context_.get(), data, bytes) == 1); }
  void add_field(std::string_view text) {  // and a zero byte
    add(text.data(), text.size());
    add("", 1);
  }
  std::vector<std::uint8_t> digest() {
    std::vector<std::uint8_t> bytes(EVP_MAX_MD_SIZE);
    unsigned int length = 0;
    check(EVP_DigestFinal_ex(context_.get(), bytes.data(), &length) == 1);
    bytes.resize(length);
    return bytes;
  }
  std::string hexadecimal() {
    std::string text;
    for (const std::uint8_t byte : digest()) {
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    return text;
  }

 private:
  static void check(bool ok) {
    if (!ok) throw std::runtime_error("OpenSSL could not compute a SHA-256");
  }

  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

}  // namespace dp
