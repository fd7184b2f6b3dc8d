// Hostile and broken weights files as --init.
#include <filesystem>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "dp/dp.h"
#include "support/catch.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// A safetensors file with this header and `buffer` data bytes.
std::string file_of(std::string header, std::size_t buffer) {
  while (header.size() % 8 != 0) header += ' ';
  return little_endian(header.size()) + header + std::string(buffer, '\0');
}

std::string entry(const std::string& name, const std::string& shape, std::uint64_t begin, std::uint64_t end,
                  const std::string& dtype = "F32") {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

class WeightsTable {
 public:
  WeightsTable() { write_tiny_mnist(temp_.path()); }

  void refuses(const std::string& bytes, std::vector<std::string> fragments = {}) {
    const std::string path = temp_ / "w.safetensors";
    write_text(path, bytes);
    refuses_path(path, std::move(fragments), bytes.size());
  }

  void refuses_path(const std::string& path, std::vector<std::string> fragments, std::size_t size = 0) {
    fragments.push_back(path);
    check_bad_input(
        {{"--dataset", "mnist", "--data-path", ".", "--model", "mlp", "--cpu", "1", "--dry-run", "--init", path},
         3,
         fragments,
         size},
        temp_.path());
  }

  const TemporaryFolder& temp() const { return temp_; }

 private:
  TemporaryFolder temp_;
};

TEST_CASE("initial weights that are not in safetensors format are rejected") {
  WeightsTable table;
  table.refuses_path(table.temp() / "none", {});
  table.refuses("PK\x03\x04" + std::string(60, 'x'), {"zip file is damaged", "torch.save"});
  table.refuses("\x80\x02}q" + std::string(60, 'x'), {"pickle"});
  table.refuses("<!DOCTYPE html><html><body>Sign in</body></html>", {"HTML page", "download"});
  table.refuses_path(table.temp().path(), {});
  table.refuses("");
  table.refuses("1234567");
  table.refuses(little_endian(0));
  table.refuses(little_endian(0xffffffffffffffff) + "{}");
  table.refuses(little_endian(100'000'001) + "{}");
  table.refuses(little_endian(90'000'000) + "{}");
  table.refuses(little_endian(9) + "{}      ");
  table.refuses(file_of("[]", 0));
  table.refuses(file_of("{\"a\":", 0));
  table.refuses(file_of("{} x", 0));
  table.refuses(file_of(std::string(100'000, '['), 0));
  table.refuses(file_of("{\"a\":" + std::string(50'000, '{'), 0));
  table.refuses(std::string("PK\3\4") + std::string(500, 'p'));  // a zip file, as torch.save writes it
}

TEST_CASE("initial weights whose safetensors header contradicts the file are rejected") {
  WeightsTable table;
  table.refuses(file_of("{" + entry("a", "[2]", 0, 16) + "}", 16));  // too long for its shape
  table.refuses(file_of("{" + entry("a", "[4]", 0, 16) + "}", 8));   // past the end
  table.refuses(file_of("{" + entry("a", "[4]", 8, 24) + "}", 24));  // a hole
  table.refuses(file_of("{" + entry("a", "[4]", 0, 16) + "," + entry("b", "[4]", 8, 24) + "}", 24));  // an overlap
  table.refuses(file_of("{" + entry("a", "[4]", 16, 0) + "}", 16));
  table.refuses(file_of("{" + entry("a", "[4]", 0, 16) + "}", 20));  // bytes left over
  table.refuses(file_of("{" + entry("a", "[4]", 0, 16) + "," + entry("a", "[4]", 16, 32) + "}", 32));  // a name twice
  table.refuses(file_of("{" + entry("a", "[4294967296,4294967296,4294967296]", 0, 16) + "}", 16));
  table.refuses(file_of("{" + entry("a", "[-4]", 0, 16) + "}", 16));
  table.refuses(file_of("{" + entry("a", "[1,1,1,1,1,1,1,1,1]", 0, 4) + "}", 4));
  table.refuses(file_of("{" + entry("a", "[4]", 0, 16, "F99") + "}", 16));
  table.refuses(file_of("{" + entry("a", "[4]", 0, 16) + "}", 0));
  table.refuses(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", 16));
  table.refuses(file_of("{\"a\":7}", 0));
  table.refuses(file_of("{\"__metadata__\":{\"a\":1}}", 0));
  std::string many = "{";
  for (int i = 0; i <= 10'000; ++i) many += (i ? "," : "") + entry("t" + std::to_string(i), "[0]", 0, 0);
  table.refuses(file_of(many + "}", 0));
}

TEST_CASE("initial weights of another model are rejected") {
  WeightsTable table;
  const std::string path = table.temp() / "w.safetensors";
  const auto weights = dp::DataParallel(dp::models::mlp(), {.devices = dp::cpus(1)}).weights();
  const auto refuses = [&](auto change, const std::vector<std::string>& fragments) {
    dp::NamedTensors changed;
    for (const auto& [name, tensor] : weights) changed.emplace_back(name, tensor.clone());
    change(changed);
    dp::write_safetensors(path, changed);
    table.refuses_path(path, fragments, fs::file_size(path));
  };
  refuses([](auto& t) { t.pop_back(); }, {"is missing", "--init-partial"});
  refuses([](auto& t) { t.emplace_back("extra", dp::Tensor(dp::Shape{1})); }, {"'extra' is not in the model"});
  refuses([](auto& t) { t[0].second = dp::Tensor(dp::Shape{5, 784}); }, {"(5, 784)", "(128, 784)"});
  refuses([](auto& t) { t[0].second.template data<float>()[3] = NAN; }, {"NaN"});
  table.refuses(file_of("{" + entry("evil\\u001b[2J", "[1]", 0, 4) + "}", 4), {"\\x1b[2J"});
  table.refuses(file_of("{" + entry("../../evil", "[1]", 0, 4) + "}", 4), {"../../evil"});
}

}  // namespace
