#include <openssl/evp.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "dp/checkpoint.h"
#include "dp/error.h"
#include "engine/base/fault.h"

namespace dp {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    check(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(const void* data, std::size_t bytes) { check(EVP_DigestUpdate(context_.get(), data, bytes) == 1); }
  void add_field(std::string_view text) {
    add(text.data(), text.size());
    add("", 1);
  }
  std::string hexadecimal() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    check(EVP_DigestFinal_ex(context_.get(), digest, &length) == 1);
    std::string text;
    for (unsigned int i = 0; i < length; ++i) {
      text += "0123456789abcdef"[digest[i] >> 4];
      text += "0123456789abcdef"[digest[i] & 15];
    }
    return text;
  }

 private:
  static void check(bool ok) {
    if (!ok) throw std::runtime_error("OpenSSL could not compute a SHA-256");
  }

  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

}  // namespace

// Input of the digest, per tensor in order of name: name, zero byte, type, zero byte, shape, zero byte, data. Type and
// shape are formatted by to_string().
std::string weights_sha256(const NamedTensors& tensors) {
  std::vector<const NamedTensors::value_type*> sorted;
  for (const auto& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  Sha256 digest;
  for (const auto* entry : sorted) {
    const auto& [name, tensor] = *entry;
    if (tensor.empty() || !tensor.storage()->host_accessible())
      throw Error(ErrorCode::usage, "tensor '" + printable(name) + "' has no host memory; copy it there first");
    digest.add_field(name);
    digest.add_field(to_string(tensor.dtype()));
    digest.add_field(to_string(tensor.shape()));
    digest.add(tensor.raw(), tensor.bytes());
  }
  return digest.hexadecimal();
}

}  // namespace dp
