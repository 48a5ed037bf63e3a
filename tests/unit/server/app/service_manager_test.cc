#include "server/app/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace quire {
namespace {

/// A datagram socket that NOTIFY_SOCKET names.
class ManagerSocket {
 public:
  explicit ManagerSocket(const std::string& path) : path_(path) {
    fd_ = ::socket(AF_UNIX, SOCK_DGRAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (path[0] == '@') address.sun_path[0] = '\0';
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), bytes), 0);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~ManagerSocket() {
    ::unsetenv("NOTIFY_SOCKET");
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  std::string received() const {
    char bytes[64];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
    return n < 0 ? std::string() : std::string(bytes, static_cast<std::size_t>(n));
  }

 private:
  std::string path_;
  int fd_;
};

TEST(ServiceManager, StatesReachTheSocket) {
  const std::string name = "quire-notify-" + std::to_string(::getpid());
  for (const std::string& path : {"/tmp/" + name, "@" + name}) {
    const ManagerSocket manager(path);
    notify_service_manager("READY=1");
    EXPECT_EQ(manager.received(), "READY=1") << path;
  }
}

TEST(ServiceManager, WithoutASocketNothingHappens) {
  ::unsetenv("NOTIFY_SOCKET");
  notify_service_manager("READY=1");
  ::setenv("NOTIFY_SOCKET", "relative", 1);
  notify_service_manager("READY=1");
  ::setenv("NOTIFY_SOCKET", ("/" + std::string(200, 'x')).c_str(), 1);
  notify_service_manager("READY=1");
  ::setenv("NOTIFY_SOCKET", "/tmp/nobody-listens-here", 1);
  notify_service_manager("READY=1");
  ::unsetenv("NOTIFY_SOCKET");
}

}  // namespace
}  // namespace quire
