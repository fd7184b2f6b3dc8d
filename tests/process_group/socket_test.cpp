// Sockets of process groups: their options, and the errors of listening and connecting.
#include "engine/process_group/connection.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>

#include "dp/error.h"
#include "support/catch.h"
#include "support/free_port.h"
#include "support/patience.h"

using namespace dp;
using namespace dp::process_group;

namespace {

int no_names_now = 0;  // what every lookup returns instead of a result, if not 0

}  // namespace

// Stands before the function of the C library.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto real = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return no_names_now != 0 ? no_names_now : real(name, service, hints, found);
}

namespace {

using test::kPatience;
constexpr std::chrono::milliseconds kNow{0};

template <typename Work>
std::pair<ErrorCode, std::string> error_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::usage, ""};
}

bool readable(int file, std::chrono::milliseconds within) {
  pollfd one{file, POLLIN, 0};
  return ::poll(&one, 1, static_cast<int>(within.count())) == 1;
}

void check_options(const FileHandle& socket) {
  REQUIRE(socket);
  CHECK((::fcntl(socket.get(), F_GETFL) & O_NONBLOCK) != 0);
  CHECK((::fcntl(socket.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

bool sends_at_once(const FileHandle& socket) {
  int value = 0;
  socklen_t size = sizeof value;
  REQUIRE(::getsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &value, &size) == 0);
  return value != 0;
}

Clock::time_point soon() { return Clock::now() + kPatience; }

}  // namespace

TEST_CASE("socket: both ends of a connection are non-blocking, closed in new programs, and send at once") {
  const FileHandle listener = listen_on("127.0.0.1", 0);
  check_options(listener);
  CHECK(port_of(listener) > 0);
  CHECK_FALSE(accept_from(listener));
  const FileHandle client = connect_to("127.0.0.1", port_of(listener), soon());
  REQUIRE(readable(listener.get(), kPatience));
  const FileHandle server = accept_from(listener);
  CHECK_FALSE(accept_from(listener));
  for (const FileHandle* end : {&client, &server}) {
    check_options(*end);
    CHECK(sends_at_once(*end));
  }
  CHECK(port_of(server) == port_of(listener));
  CHECK(port_of(client) != port_of(listener));
}

TEST_CASE("socket: a port can be listened on again as soon as its listener is closed") {
  const int port = std::stoi(test::free_port());
  FileHandle listener = listen_on("127.0.0.1", port);
  CHECK(port_of(listener) == port);
  {
    const FileHandle client = connect_to("127.0.0.1", port, soon());
    REQUIRE(readable(listener.get(), kPatience));
    FileHandle server = accept_from(listener);
    REQUIRE(server);
    server.close();  // first, so that this port keeps a closed connection
    CHECK(readable(client.get(), kPatience));
  }
  listener.close();
  CHECK(port_of(listen_on("127.0.0.1", port)) == port);
}

TEST_CASE("socket: the errors of listening and connecting name the address, the reason and the remedy") {
  const FileHandle listener = listen_on("127.0.0.1", 0);
  const std::string port = std::to_string(port_of(listener));
  const auto in_use = error_of([&] { listen_on("127.0.0.1", port_of(listener)); });
  CHECK(in_use.first == ErrorCode::usage);
  CHECK(in_use.second == "rank 0 cannot listen on 127.0.0.1:" + port +
                             ": Address already in use; choose another --master-port, or an address of this host");
  const auto foreign = error_of([&] { listen_on("192.0.2.1", 20001); });
  CHECK(foreign.first == ErrorCode::usage);
  CHECK(foreign.second ==
        "rank 0 cannot listen on 192.0.2.1:20001: Cannot assign requested address; choose another --master-port, or an "
        "address of this host");
  const std::string name(70, 'x');  // longer than a label of a host name
  for (const bool listens : {true, false}) {
    const auto unknown = error_of([&] { listens ? listen_on(name, 1) : connect_to(name, 1, Clock::now()); });
    CHECK(unknown.first == ErrorCode::usage);
    CHECK_THAT(unknown.second, Catch::StartsWith("cannot resolve the address '" + name + "' of rank 0: ") &&
                                   Catch::EndsWith("; correct --master-addr (MASTER_ADDR)"));
  }
  no_names_now = EAI_AGAIN;
  for (const bool listens : {true, false}) {
    const auto unknown = error_of([&] { listens ? listen_on("node", 1) : connect_to("node", 1, Clock::now()); });
    CHECK(unknown.first == ErrorCode::device);  // so --max-restarts tries again
    CHECK(unknown.second ==
          "cannot resolve the address 'node' of rank 0: Temporary failure in name resolution; check that this host can "
          "look up names");
  }
  no_names_now = 0;
  const std::string closed = test::free_port();
  const auto refused = error_of([&] { connect_to("127.0.0.1", std::stoi(closed), Clock::now()); });
  CHECK(refused.first == ErrorCode::timeout);
  CHECK(refused.second == "rank 0 does not answer at 127.0.0.1:" + closed +
                              ": Connection refused; check that rank 0 was started, and check the master address and "
                              "port");
}

TEST_CASE("socket: a wake-up is readable from the first raise until it is cleared") {
  const WakeUp wake;
  CHECK_FALSE(readable(wake.descriptor(), kNow));
  wake.clear();
  CHECK_FALSE(readable(wake.descriptor(), kNow));
  wake.raise();
  wake.raise();
  CHECK(readable(wake.descriptor(), kNow));
  wake.clear();
  CHECK_FALSE(readable(wake.descriptor(), kNow));
}
