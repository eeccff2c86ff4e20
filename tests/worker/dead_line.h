#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace lorad::worker {

// A line to a port of this machine that can go dead: connections stay open, and no byte passes.
class DeadLine {
 public:
  explicit DeadLine(int port) : target_(port) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    REQUIRE(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(listener_, 8) == 0);
    socklen_t length = sizeof(address);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~DeadLine() {
    stop_ = true;
    thread_.join();
    for (const auto& [one, other] : pairs_) {
      close(one);
      close(other);
    }
    close(listener_);
  }
  void Die() { dead_ = true; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  void Accept() {
    const int one = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(target_);
    connect(other, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    pairs_.emplace_back(one, other);
  }
  static void Forward(int from, int to) {
    char bytes[65536];
    const ssize_t read = recv(from, bytes, sizeof(bytes), 0);
    if (read <= 0) {
      shutdown(to, SHUT_WR);
    } else {
      send(to, bytes, static_cast<size_t>(read), MSG_NOSIGNAL);
    }
  }
  void Run() {
    while (!stop_) {
      std::vector<pollfd> waits = {{listener_, POLLIN, 0}};
      for (const auto& [one, other] : pairs_) {
        waits.push_back({one, POLLIN, 0});
        waits.push_back({other, POLLIN, 0});
      }
      if (dead_) waits.clear();
      poll(waits.data(), waits.size(), 10);
      if (dead_) continue;
      for (size_t i = 1; i < waits.size(); ++i) {
        if (waits[i].revents == 0) continue;
        const auto& [one, other] = pairs_[(i - 1) / 2];
        waits[i].fd == one ? Forward(one, other) : Forward(other, one);
      }
      if (waits[0].revents != 0) Accept();
    }
  }

  const int target_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> dead_ = false;
  std::atomic<bool> stop_ = false;
  std::vector<std::pair<int, int>> pairs_;
  std::thread thread_;
};

}  // namespace lorad::worker
