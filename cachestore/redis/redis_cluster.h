/// This file sends commands to the right node of a Redis cluster, to a single server, or to the
/// master that sentinels name. hiredis knows one connection only; slots, redirections and topology
/// are here.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cachestore/redis/redis_connection.h"
#include "cachestore/redis/redis_loops.h"

namespace quire {

/// Returns the slot of a key: CRC-16 of what stands between the first '{' and the next '}', or of
/// the whole key, modulo 16384.
std::uint16_t redis_slot(std::string_view key);

/// Which node has which slots. It is learned from any node or sentinel that answers, and again
/// after a redirection, or a node that was lost or gave no answer. Threads: all methods
/// concurrently; calls wait on the network, at most until their deadline.
class RedisCluster {
 public:
  using Deadline = Clock::time_point;
  /// Receives the reply to the command of this index; an error ends the run and is returned by it.
  using TakeReply = std::function<Status(std::size_t index, RedisReply reply)>;
  /// Returns where a string goes that is the reply to the command of this index, as
  /// RedisReplyStream::PlaceString does.
  using PlaceReply = std::function<std::span<std::byte>(std::size_t index, std::size_t bytes)>;

  /// How many commands are under way at once.
  struct Pipeline {
    std::size_t most = 1;
    /// About how long each reply is: no more are under way than keep the connection busy, and they
    /// are received by event loops, which call `take` and `place`. 0: not known.
    std::uint64_t reply_bytes = 0;
  };

  explicit RedisCluster(RedisServer server);
  ~RedisCluster();

  /// Sends encoded commands on keys of one slot and passes each reply on, in any order.
  /// Redirections (MOVED, ASK) and a node that was replaced are followed a few times. Errors: those
  /// of RedisConnection, and kUnavailable (redirected in a circle; the cluster is down, loading or
  /// read-only).
  Status run(std::uint16_t slot, std::span<const std::string> commands, Pipeline pipeline,
             Deadline deadline, const TakeReply& take, const PlaceReply& place = {});
  /// Sends reads to a replica of the slot's node, which may lack what was written a moment ago.
  /// Further errors: kNotFound (no replica is known, or it may not be read).
  Status run_at_replica(std::uint16_t slot, std::span<const std::string> commands,
                        Pipeline pipeline, Deadline deadline, const TakeReply& take,
                        const PlaceReply& place = {});
  /// Ends calls in flight soon, with kUnavailable, and refuses further ones.
  void stop() { stopping_ = true; }

 private:
  using Connection = std::unique_ptr<RedisConnection>;
  struct Topology;

  /// Returns the topology, which is learned if there is none or it is out of date.
  Result<std::shared_ptr<const Topology>> topology(Deadline deadline);
  Result<Topology> learn_from_any(std::span<const RemoteHost> hosts, Deadline deadline);
  Result<Topology> learn(const RemoteHost& host, Deadline deadline);
  Result<Topology> learn_slots(const RemoteHost& host, RedisConnection& connection,
                               Deadline deadline) const;
  Result<Topology> learn_from_sentinel(RedisConnection& sentinel, Deadline deadline) const;
  void forget_topology();
  void doubt(const RemoteHost& host);
  Result<Connection> connection(const RemoteHost& host, Deadline deadline);
  void keep(const RemoteHost& host, Connection connection);
  void drop_idle(const RemoteHost& host);

  /// Commands that wait for a reply, and where they go next.
  struct Work;
  class Exchange;
  Status run_at(const RemoteHost& host, Work& work, Deadline deadline);
  std::size_t window(const RemoteHost& host, const RedisConnection& connection, Pipeline pipeline);

  /// Milliseconds of a node's last answers to single commands.
  struct AnswerTimes {
    std::array<double, 8> last{};
    std::size_t added = 0;
    void add(double ms) { last[added++ % last.size()] = ms; }
    double shortest() const;
  };

  const RedisServer server_;
  std::atomic<bool> stopping_{false};
  std::mutex mu_;
  std::shared_ptr<const Topology> topology_;                 // guarded by mu_; null: to be learned
  Clock::time_point look_again_ = Clock::time_point::max();  // guarded by mu_
  std::set<RemoteHost> silent_;  // guarded by mu_; gave no answer since the topology was learned
  std::map<RemoteHost, Clock::time_point> paused_replicas_;  // guarded by mu_; until when
  std::vector<RemoteHost> known_;                       // guarded by mu_; nodes of the last one
  std::map<RemoteHost, std::vector<Connection>> idle_;  // guarded by mu_
  std::map<RemoteHost, AnswerTimes> answer_times_;      // guarded by mu_
  RedisLoops loops_;
};

}  // namespace quire
