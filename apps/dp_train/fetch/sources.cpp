#include "sources.h"

#include <dp/device.h>
#include <dp/error.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace dp_train {

// MNIST, Fashion-MNIST: the SHA-256 of the files that have torchvision's MD5, rebuilt from real MNIST (as
// tests/apps/fetch/fetch_test.cpp does) and from Debian's package dataset-fashion-mnist. CIFAR: the MD5 of its home
// page, which gives no SHA-256.
const std::vector<Source>& sources() {
  static const std::vector<Source> table{
      {"mnist",
       {"https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"},
       "MNIST/raw",
       {{"train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
        {"train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
        {"t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
        {"t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"}}},
      {"fashion_mnist",
       {"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"},
       "FashionMNIST/raw",
       {{"train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"},
        {"train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"},
        {"t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"},
        {"t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"}}},
      {"cifar10",
       {"https://www.cs.toronto.edu/~kriz/"},
       "cifar-10-batches-bin",
       {{"cifar-10-binary.tar.gz", 170052171, "c32a1d4ab5d03f1284b67883e8d87530"}},
       {{"data_batch_1.bin", 30730000},
        {"data_batch_2.bin", 30730000},
        {"data_batch_3.bin", 30730000},
        {"data_batch_4.bin", 30730000},
        {"data_batch_5.bin", 30730000},
        {"test_batch.bin", 30730000}}},
      {"cifar100",
       {"https://www.cs.toronto.edu/~kriz/"},
       "cifar-100-binary",
       {{"cifar-100-binary.tar.gz", 168513733, "03b5dce01913d631647c71ecec9e9cb8"}},
       {{"train.bin", 153700000}, {"test.bin", 30740000}}},
  };
  return table;
}

const Source& source(const std::string& dataset) {
  for (const Source& source : sources())
    if (source.dataset == dataset) return source;
  throw dp::Error(dp::ErrorCode::usage, "fetch " + dataset + ": there is no address for this data set");
}

std::string program_beside(const std::string& name) {
  for (const std::string& folder : dp::plugin_folders())
    if (const std::string file = folder + "/" + name; ::access(file.c_str(), X_OK) == 0) return file;
  return "";
}

std::string fetch_program(const std::string& user, const std::string& instead) {
  if (const std::string program = program_beside("dp_fetch"); !program.empty()) return program;
  std::error_code unknown;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path();
  if (unknown)
    throw dp::Error(dp::ErrorCode::usage, user + ": cannot read /proc/self/exe to find dp_fetch: " + unknown.message());
  throw dp::Error(dp::ErrorCode::usage, user + ": the program dp_fetch is not in " + own.string() +
                                            "; install libcurl and libarchive and build again" + instead);
}

void check_address(const std::string& option, const std::string& address) {
  if (!address.starts_with("http://") && !address.starts_with("https://"))
    throw dp::Error(dp::ErrorCode::usage, option + ": the address must begin with http:// or https://");
  if (address.find_first_of(" \t\r\n\"'<>\\") != std::string::npos)
    throw dp::Error(dp::ErrorCode::usage,
                    option + ": the address has a space, quote, bracket or backslash; write it as %20 and the like");
}

void start_fetch(const Source& source, const FetchOptions& options) {
  std::string files;
  for (const RemoteFile& file : source.files) files += " " + source.mirrors.front() + file.name;
  const std::string program = fetch_program("fetch", ", or download by hand:" + files);
  const std::string mirror = options.mirror.value_or("");
  ::execl(program.c_str(), program.c_str(), source.dataset.c_str(), options.data_path.c_str(), mirror.c_str(),
          options.quiet ? "quiet" : "", options.progress ? "progress" : "", nullptr);
  throw dp::Error(dp::ErrorCode::usage, "fetch: cannot start " + program + ": " + std::strerror(errno));
}

}  // namespace dp_train
