// Messages over a socket: complete and partial messages, full and closed sockets, and invalid input.
#include "engine/process_group/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/process_group/coordinator.h"
#include "support/catch.h"

using namespace dp;
using namespace dp::process_group;

namespace {

// Two connected ends. The tests write raw bytes to the first and read them with a Connection at the second.
std::array<FileHandle, 2> socket_pair() {
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {FileHandle(ends[0]), FileHandle(ends[1])};
}

bool readable(const Connection& connection) {
  pollfd one{connection.descriptor(), POLLIN, 0};
  return ::poll(&one, 1, 0) == 1;
}

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// A message as it is sent: number, length and kind, then the body.
std::string raw(std::uint64_t number, std::uint32_t length, std::uint32_t kind, const std::string& body) {
  return bytes_of(number) + bytes_of(length) + bytes_of(kind) + body;
}

}  // namespace

TEST_CASE("connection: messages arrive complete and in order, whatever their size") {
  auto [from, to] = socket_pair();
  Connection sender(std::move(from)), receiver(std::move(to));
  const Message sent[] = {{Kind::hello, 0, ""},
                          {Kind::give, ~std::uint64_t{0}, std::string("a\0b", 3)},
                          {Kind::everyone, 7, std::string(16384, 'x')},
                          {Kind::fail, 1, std::string(20000, 'y')},
                          {Kind::bye, 2, "end"}};
  for (const Message& message : sent) sender.send(message);
  CHECK_FALSE(sender.unsent());
  CHECK(sender.flush());
  CHECK(receiver.read(1 << 20));
  CHECK_FALSE(readable(receiver));
  for (const Message& message : sent) {
    const auto got = receiver.next(20000);
    REQUIRE(got);
    CHECK(got->kind == message.kind);
    CHECK(got->number == message.number);
    CHECK(got->body == message.body);
  }
  CHECK_FALSE(receiver.next(20000));
  sender.send({Kind::busy, 1});
  CHECK(receiver.read(1 << 20));
  const auto last = receiver.next(0);
  REQUIRE(last);
  CHECK(last->kind == Kind::busy);
  CHECK(last->number == 1);
  CHECK(last->body.empty());
}

TEST_CASE("connection: a message that arrives byte by byte is returned once, when it is complete") {
  auto [from, to] = socket_pair();
  Connection receiver(std::move(to));
  const std::string message = raw(5, 3, static_cast<std::uint32_t>(Kind::roll), "abc");
  for (int repeat = 0; repeat < 2; ++repeat)
    for (std::size_t i = 0; i < message.size(); ++i) {
      REQUIRE(::send(from.get(), &message[i], 1, 0) == 1);
      CHECK(receiver.read(100));
      const auto got = receiver.next(100);
      REQUIRE(got.has_value() == (i + 1 == message.size()));
      if (got) CHECK((got->number == 5 && got->kind == Kind::roll && got->body == "abc"));
    }
}

TEST_CASE("connection: what a full socket does not accept is sent later, in order") {
  auto [from, to] = socket_pair();
  Connection sender(std::move(from)), receiver(std::move(to));
  constexpr std::size_t kBytes = std::size_t{4} << 20;  // more than a socket holds
  std::string body(kBytes, ' ');
  for (std::size_t i = 0; i < kBytes; ++i) body[i] = static_cast<char>((i * 31) >> 8);
  sender.send({Kind::give, 1, body});
  REQUIRE(sender.unsent());
  CHECK_FALSE(sender.flush());
  sender.send({Kind::give, 2, "second"});
  CHECK(sender.unsent());
  std::vector<Message> got;
  for (int round = 0; round < 100000 && got.size() < 2; ++round) {
    REQUIRE(receiver.read(2 * kBytes));
    while (auto message = receiver.next(kBytes)) got.push_back(std::move(*message));
    sender.flush();
  }
  REQUIRE(got.size() == 2);
  CHECK(got[0].number == 1);
  CHECK(got[0].body == body);
  CHECK(got[1].number == 2);
  CHECK(got[1].body == "second");
  CHECK(sender.flush());
  CHECK_FALSE(sender.unsent());
}

TEST_CASE("connection: a closed peer's last message is received, and messages to it are dropped") {
  auto [from, to] = socket_pair();
  Connection receiver(std::move(to));
  CHECK(receiver.read(100));  // nothing yet
  {
    Connection sender(std::move(from));
    sender.send({Kind::bye, 3, "x"});
  }
  CHECK_FALSE(receiver.read(100));
  const auto last = receiver.next(100);
  REQUIRE(last);
  CHECK(last->number == 3);
  CHECK_FALSE(receiver.next(100));
  receiver.send({Kind::give, 0, "nobody reads this"});
  CHECK_FALSE(receiver.unsent());
  CHECK(receiver.flush());
}

TEST_CASE("connection: a send that fails ends the connection, but the peer's last message is received") {
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);  // which sends no long messages
  Connection sender{FileHandle(ends[0])}, peer{FileHandle(ends[1])};
  peer.send({Kind::bye, 3, "x"});
  sender.send({Kind::give, 0, std::string(std::size_t{8} << 20, 'x')});
  CHECK_FALSE(peer.read(100));
  CHECK(sender.read(100));
  const auto last = sender.next(100);
  REQUIRE(last);
  CHECK(last->number == 3);
}

TEST_CASE("connection: a flood of input is read in portions") {
  auto [from, to] = socket_pair();
  Connection receiver(std::move(to));
  const std::string flood(60000, 'x');
  REQUIRE(::send(from.get(), flood.data(), flood.size(), MSG_DONTWAIT) == 60000);
  CHECK(receiver.read(1000));
  CHECK(readable(receiver));  // the rest waits in the socket
  CHECK(receiver.read(1 << 20));
  CHECK_FALSE(readable(receiver));
}

TEST_CASE("connection: messages of unknown kind and messages that are too long are rejected") {
  const auto error_of = [](const std::string& message, std::size_t longest) -> std::string {
    auto [from, to] = socket_pair();
    Connection receiver(std::move(to));
    REQUIRE(::send(from.get(), message.data(), message.size(), 0) == static_cast<ssize_t>(message.size()));
    REQUIRE(receiver.read(1 << 20));
    try {
      return receiver.next(longest) ? "a message" : "nothing";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  };
  const auto bye = static_cast<std::uint32_t>(Kind::bye);
  CHECK(error_of(raw(0, 2, bye, "ab"), 2) == "a message");
  CHECK(error_of(raw(0, 2, bye, "a"), 2) == "nothing");
  CHECK(error_of(raw(0, 3, bye, "abc"), 2) == "a message that is too long");
  CHECK(error_of(raw(0, 0xffffffffu, bye, ""), 1 << 20) == "a message that is too long");
  CHECK(error_of(raw(0, 0, bye + 1, ""), 2) == "a message of unknown kind");
}

TEST_CASE("connection: texts are packed and unpacked, and malformed lists are rejected") {
  using Texts = std::vector<std::string>;
  for (const Texts& texts : {Texts{}, Texts{""}, Texts{"", "", ""}, Texts{"one", std::string("t\0o", 3), "", "three"}})
    CHECK(split(join(texts)) == texts);
  CHECK(join({"ab", ""}) == bytes_of(std::uint32_t{2}) + "ab" + bytes_of(std::uint32_t{0}));
  const std::string joined = join({"ab", "cde"});
  for (std::size_t size = 1; size < joined.size(); ++size) {
    INFO(size << " of " << joined.size() << " bytes");
    if (size == 6)
      CHECK(split(joined.substr(0, size)) == Texts{"ab"});
    else
      CHECK_THROWS_WITH(split(joined.substr(0, size)), "a truncated list");
  }
  CHECK_THROWS_WITH(split(bytes_of(std::uint32_t{0xffffffffu}) + "ab"), "a truncated list");
}

TEST_CASE("connection: the first message of a rank is packed and unpacked, and malformed ones are rejected") {
  const Hello hello = parse_hello(to_text(Hello{"token", 3, 12, "this host", "name"}));
  CHECK(hello.token == "token");
  CHECK(hello.rank == 3);
  CHECK(hello.size == 12);
  CHECK(hello.host == "this host");
  CHECK(hello.name == "name");
  CHECK(parse_hello(join({"dp-world-3", "t", "-1", "2", "h", "n"})).rank == -1);
  CHECK_THROWS_WITH(parse_hello(join({"dp-world-1", "t", "1", "2", "h", "n"})), "a different protocol");
  CHECK_THROWS_WITH(parse_hello(join({"dp-world-3", "t", "1", "2", "h"})), "a different protocol");
  CHECK_THROWS_WITH(parse_hello(join({"dp-world-3", "t", "1", "2", "h", "n", ""})), "a different protocol");
  CHECK_THROWS_WITH(parse_hello(""), "a different protocol");
  CHECK_THROWS_WITH(parse_hello(join({"dp-world-3", "t", "1x", "2", "h", "n"})), "not a number");
  CHECK_THROWS_WITH(parse_hello(join({"dp-world-3", "t", "1", "2 ", "h", "n"})), "not a number");
}

TEST_CASE("connection: a failure keeps its rank, its code and its message, and unknown codes become known ones") {
  for (const ErrorCode code : {ErrorCode::usage, ErrorCode::data, ErrorCode::device, ErrorCode::nonfinite,
                               ErrorCode::timeout, ErrorCode::io}) {
    const Failure failure = parse_failure(to_text(Failure{2, Error(code, "what happened")}));
    CHECK(failure.rank == 2);
    CHECK(failure.error.code() == code);
    CHECK(std::string(failure.error.what()) == "what happened");
  }
  CHECK(parse_failure(join({"1", "0", ""})).error.code() == ErrorCode::usage);
  CHECK(parse_failure(join({"1", "99", ""})).error.code() == ErrorCode::io);
  CHECK_THROWS_WITH(parse_failure(join({"1", "2"})), "a truncated failure report");
  CHECK_THROWS_WITH(parse_failure(join({"1", "2", "", ""})), "a truncated failure report");
  CHECK_THROWS(parse_failure(join({"1", "two", ""})));
  CHECK(to_sentence({4, Error(ErrorCode::io, "the disk is full")}) == "rank 4 failed: the disk is full");
  CHECK(to_sentence({0, Error(ErrorCode::io, "the disk is full")}) == "rank 0 failed: the disk is full");
  CHECK(to_sentence({Failure::kNobody, Error(ErrorCode::timeout, "a rank is missing")}) == "a rank is missing");
}
