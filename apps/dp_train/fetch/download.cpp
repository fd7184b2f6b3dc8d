#include "download.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string_view>

#include "files.h"

namespace dp_train {
namespace {

constexpr long kLeastSpeed = 1000, kMostRedirects = 5, kNoSuchRange = 416, kPart = 206;
constexpr char kGzip = '\x1f';  // the first byte of every gzip file

// Parses the header "bytes FIRST-LAST/TOTAL"; nullopt if the text has another form. TOTAL may be "*" (unknown).
struct Range {
  std::uint64_t first, last;
  std::optional<std::uint64_t> total;
};
std::optional<Range> range_of(std::string_view text) {
  const auto take = [&text](std::string_view word) {
    const bool there = text.starts_with(word);
    if (there) text.remove_prefix(word.size());
    return there;
  };
  const auto number = [&text](std::uint64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return error == std::errc();
  };
  Range range{0, 0, 0};
  if (!take("bytes ") || !number(range.first) || !take("-") || !number(range.last) || !take("/")) return std::nullopt;
  if (take("*"))
    range.total.reset();
  else if (!number(*range.total))
    return std::nullopt;
  return text.empty() ? std::optional(range) : std::nullopt;
}

// Hides the address of the proxy, which libcurl prints with its password, if it has one.
std::string without_proxy(std::string text) {
  for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}) {
    const char* const proxy = std::getenv(name);
    const std::string_view value = proxy == nullptr ? "" : proxy;
    if (value.find('@') == std::string_view::npos) continue;
    for (std::size_t at = 0; (at = text.find(value, at)) != std::string::npos;)
      text.replace(at, value.size(), "the proxy in " + std::string(name));
  }
  return text;
}

class Transfer {
 public:
  explicit Transfer(const Download& what)
      : what_(what), file_(what.file, O_WRONLY | O_CREAT | O_NOFOLLOW), handle_(easy_handle()) {
    have_ = file_.end();
    if (have_ > what_.bytes) start_over();
  }

  std::optional<Failure> run() {
    if (have_ < what_.bytes) {
      CURLcode result = perform();
      if (have_ > 0 && (status() == kNoSuchRange || other_range_)) {
        start_over();
        result = perform();
      }
      if (stopped()) return std::nullopt;
      if (error_) std::rethrow_exception(error_);
      if (!refusal_.empty()) return Failure{dp::ErrorCode::data, refusal_};
      if (result != CURLE_OK)
        return Failure{dp::ErrorCode::io, without_proxy(*text_ != '\0' ? text_ : curl_easy_strerror(result))};
      if (have_ < what_.bytes)
        return Failure{dp::ErrorCode::io,
                       "the server sent " + std::to_string(have_) + " of " + std::to_string(what_.bytes) + " bytes"};
    }
    file_.sync();
    return std::nullopt;
  }

 private:
  using Handle = std::unique_ptr<CURL, void (*)(CURL*)>;

  static Handle easy_handle() {
    static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
    Handle handle(ready == CURLE_OK ? curl_easy_init() : nullptr, &curl_easy_cleanup);
    if (!handle) throw dp::Error(dp::ErrorCode::io, "libcurl could not be initialised");
    return handle;
  }

  template <typename Value>
  void set(CURLoption option, Value value) {
    if (const CURLcode result = curl_easy_setopt(handle_.get(), option, value); result != CURLE_OK)
      throw dp::Error(dp::ErrorCode::io, what_.url + ": " + curl_easy_strerror(result));
  }

  CURLcode perform() {
    const std::string range = std::to_string(have_) + "-";
    const bool secure = what_.url.starts_with("https:");
    curl_easy_reset(handle_.get());
    set(CURLOPT_URL, what_.url.c_str());
    set(CURLOPT_USERAGENT, "dp_train/" DP_VERSION);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, kMostRedirects);
    set(CURLOPT_FAILONERROR, 1L);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(what_.patience));
    set(CURLOPT_LOW_SPEED_LIMIT, kLeastSpeed);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(what_.patience));
    if (have_ > 0) set(CURLOPT_RANGE, range.c_str());
    set(CURLOPT_ERRORBUFFER, text_);
    set(CURLOPT_WRITEFUNCTION, &Transfer::on_data);
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, &Transfer::on_progress);
    set(CURLOPT_XFERINFODATA, this);
    first_ = true, other_range_ = false, refusal_.clear(), *text_ = '\0';
    return curl_easy_perform(handle_.get());
  }

  long status() const {
    long status = 0;
    curl_easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &status);
    return status;
  }

  bool stopped() const { return what_.stop.load() != 0; }

  // Whether the response has the bytes that were requested. Sets refusal_ if not.
  bool is_requested_range() {
    curl_header* header = nullptr;
    const bool one = curl_easy_header(handle_.get(), "Content-Range", 0, CURLH_HEADER, -1, &header) == CURLHE_OK &&
                     header->amount == 1;
    const auto range = one ? range_of(header->value) : std::nullopt;
    if (have_ > 0 && range && range->first == have_ && range->last == what_.bytes - 1 &&
        range->total.value_or(what_.bytes) == what_.bytes)
      return true;
    refusal_ = "the server sent " +
               (one ? "'" + std::string(header->value).substr(0, 80) + "'" : std::string("a part without its range")) +
               (have_ > 0 ? " instead of bytes " + std::to_string(have_) + "-" + std::to_string(what_.bytes - 1) + "/" +
                                std::to_string(what_.bytes)
                          : " instead of the whole file of " + std::to_string(what_.bytes) + " bytes");
    return false;
  }

  void start_over() {
    file_.clear();
    have_ = 0;
  }

  // False ends the transfer.
  bool take(const char* data, std::size_t size) {
    if (size == 0) return true;
    if (first_ && status() == kPart && !is_requested_range()) {
      other_range_ = true;
      return false;
    }
    const bool from_first_byte = have_ == 0 || (first_ && status() != kPart);
    if (from_first_byte && *data != kGzip) {
      refusal_ = *data == '<' ? "the server sent a web page instead of the file" : "the server sent no gzip file";
      return false;
    }
    if (from_first_byte && have_ > 0) start_over();
    first_ = false;
    if (size > what_.bytes - have_) {
      refusal_ = "the server sends more than the " + std::to_string(what_.bytes) + " bytes of the file";
      start_over();
      return false;
    }
    file_.write(data, size);
    have_ += size;
    return true;
  }

  static std::size_t on_data(const char* data, std::size_t, std::size_t size, void* self) {
    Transfer& transfer = *static_cast<Transfer*>(self);
    try {
      return transfer.take(data, size) ? size : 0;
    } catch (...) {  // exceptions cannot pass through libcurl
      transfer.error_ = std::current_exception();
      return 0;
    }
  }

  // libcurl calls it at least once a second.
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    const Transfer& transfer = *static_cast<Transfer*>(self);
    curl_off_t speed = 0;
    curl_easy_getinfo(transfer.handle_.get(), CURLINFO_SPEED_DOWNLOAD_T, &speed);
    transfer.what_.progress(transfer.have_, static_cast<double>(speed));
    return transfer.stopped() ? 1 : 0;
  }

  const Download& what_;
  File file_;
  Handle handle_;
  std::uint64_t have_ = 0;
  bool first_ = true;         // no data of this response was received yet
  bool other_range_ = false;  // the response has other bytes than those requested
  std::string refusal_;
  std::exception_ptr error_;
  char text_[CURL_ERROR_SIZE] = "";
};

}  // namespace

std::optional<Failure> download(const Download& what) { return Transfer(what).run(); }

}  // namespace dp_train
