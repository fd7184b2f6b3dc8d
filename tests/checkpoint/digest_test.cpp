#include "checkpoint/files_support.h"
#include "dp/checkpoint.h"
#include "support/catch.h"

TEST_CASE("the digest of no weights is that of no bytes") {
  CHECK(dp::weights_sha256({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// python3: sha256(b"b\0int64\0()\0" + (7).to_bytes(8, "little") + b"w\0float32\0(2, 1)\0" + struct.pack("<2f", 1, -2))
TEST_CASE("the digest covers name, type, shape and bytes in order of name") {
  const float values[] = {1, -2};
  dp::Tensor scalar(dp::Shape{}, dp::DType::i64);
  scalar.data<std::int64_t>()[0] = 7;
  const dp::NamedTensors tensors = {{"w", dp::tensor_of({2, 1}, values)}, {"b", scalar}};
  const std::string digest = dp::weights_sha256(tensors);
  CHECK(digest == "ffd8f367609fd0324ec6f4777b5159a9d3f761faeb7b2fe312b94729f08d6ceb");
  CHECK(dp::weights_sha256({tensors[1], tensors[0]}) == digest);
  CHECK(dp::weights_sha256({{"v", tensors[0].second}, tensors[1]}) != digest);
  CHECK(dp::weights_sha256({{"w", tensors[0].second.reshaped({1, 2})}, tensors[1]}) != digest);
}
