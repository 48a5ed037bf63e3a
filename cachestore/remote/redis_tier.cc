#include "cachestore/remote/redis_tier.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/redis/redis_cluster.h"

namespace quire {
namespace {

/// Bytes that are written at once, and commands.
constexpr std::uint64_t kBytesWritten = 16u << 20;
constexpr std::size_t kMostAtOnce = 64;
constexpr std::string_view kRecordField = "r";

std::string key_of(const std::string& name) { return "quire:1:{" + name + "}"; }
std::string lease_key_of(const std::string& name) { return "quire:1:lease:{" + name + "}"; }

/// Another replica may have got the lease since, so each looks whose it is within one command.
constexpr std::string_view kRenew =
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('PEXPIRE',KEYS[1],ARGV[2]) end "
    "return 0";
constexpr std::string_view kEnd =
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('UNLINK',KEYS[1]) end return 0";

std::string times_key_of(const std::string& account) {
  return "quire:1:account:times:{" + account + "}";
}
std::string bytes_key_of(const std::string& account) {
  return "quire:1:account:bytes:{" + account + "}";
}

/// KEYS: times and bytes of the account. ARGV: segment; and for kCountIn its bytes, the limit, and
/// the seconds after which Redis forgets a segment (0: never). `forget` leaves the sum right. Redis
/// may have evicted one of the keys; the account then begins anew.
constexpr std::string_view kForget =
    "local function forget(s) local b=redis.call('HGET',KEYS[2],s) "
    "if b then redis.call('HINCRBY',KEYS[2],'*',-b) redis.call('HDEL',KEYS[2],s) end "
    "redis.call('ZREM',KEYS[1],s) end ";
constexpr std::string_view kCountIn =
    "local t=redis.call('TIME') local now=t[1]*1000000+t[2] local bytes=tonumber(ARGV[2]) "
    "local limit=tonumber(ARGV[3]) local ttl=tonumber(ARGV[4]) forget(ARGV[1]) "
    "if ttl>0 then for _,s in ipairs(redis.call('ZRANGEBYSCORE',KEYS[1],'-inf',now-ttl*1000000,"
    "'LIMIT',0,1000)) do forget(s) end end "
    "local gone={} while tonumber(redis.call('HGET',KEYS[2],'*') or '0')+bytes>limit do "
    "local s=redis.call('ZRANGE',KEYS[1],0,0)[1] "
    "if not s then redis.call('UNLINK',KEYS[2]) break end "
    "forget(s) gone[#gone+1]=s end "
    "redis.call('ZADD',KEYS[1],now,ARGV[1]) redis.call('HSET',KEYS[2],ARGV[1],bytes) "
    "redis.call('HINCRBY',KEYS[2],'*',bytes) return gone";
constexpr std::string_view kCountOut = "forget(ARGV[1]) return 0";

class RedisTier final : public RemoteTier {
 public:
  RedisTier(std::shared_ptr<RedisCluster> cluster, std::int64_t ttl_seconds, bool of_replicas)
      : cluster_(std::move(cluster)), ttl_seconds_(ttl_seconds), of_replicas_(of_replicas) {}

  std::string_view kind() const override { return "redis"; }

  Result<std::string> get_record(const std::string& name, Deadline deadline) override {
    Result<std::string> out = Status::not_found("no such segment in Redis");
    QUIRE_RETURN_IF_ERROR(read(name, {command({"HGET", key_of(name), kRecordField})}, {}, deadline,
                               [&](std::size_t, RedisReply reply) {
                                 if (reply.kind == RedisReply::Kind::kNil) return Status();
                                 if (reply.kind != RedisReply::Kind::kString) return odd(reply);
                                 out = std::move(reply.text);
                                 return Status();
                               }));
    return out;
  }

  Status get_values(const std::string& name, const RemoteRecord& record, Deadline deadline,
                    const TakeValue& take) override {
    return get_values_into(name, record, deadline, {}, take);
  }

  Status get_values_into(const std::string& name, const RemoteRecord& record, Deadline deadline,
                         const PlaceValue& place, const TakeValue& take) override {
    const std::string key = key_of(name);
    std::vector<std::string> commands;
    for (std::uint64_t i = 0; i < record.num_stored(); ++i)
      commands.push_back(command({"HGET", key, std::to_string(i)}));
    const std::uint64_t mean = record.stored_bytes() /
                               std::max<std::uint64_t>(1, record.num_stored());
    std::span<std::byte> placed;
    RedisCluster::PlaceReply place_reply;
    if (place)
      place_reply = [&](std::size_t i, std::size_t bytes) { return placed = place(i, bytes); };
    return read(
        name, commands, {.most = kMostAtOnce, .reply_bytes = mean}, deadline,
        [&](std::size_t i, RedisReply reply) {
          if (reply.kind == RedisReply::Kind::kNil)
            return Status::not_found("value " + std::to_string(i) + " is missing in Redis");
          if (reply.kind != RedisReply::Kind::kString) return odd(reply);
          if (!reply.placed) return take(i, reply.text);
          return take(i, {reinterpret_cast<const char*>(placed.data()), placed.size()});
        },
        place_reply);
  }

  Status put(const std::string& name, std::uint64_t num_values, std::uint64_t /*stored_bytes*/,
             Deadline deadline, const ReadValue& value, const ReadRecord& record) override {
    const std::string key = key_of(name);
    // What was there goes first, so that values of two writers never stand side by side.
    std::vector<std::string> batch{command({"UNLINK", key})};
    std::uint64_t bytes = 0;
    const auto send = [&] {
      const Status s = run(
          name, batch, {.most = batch.size()}, deadline,
          [](std::size_t, RedisReply reply) { return reply.is_error() ? odd(reply) : Status(); });
      batch.clear();
      bytes = 0;
      return s;
    };
    for (std::uint64_t i = 0; i < num_values; ++i) {
      QUIRE_ASSIGN_OR_RETURN(const std::string stored, value(i));
      batch.push_back(command({"HSET", key, std::to_string(i), stored}));
      bytes += stored.size();
      // A writer that dies leaves nothing that stays.
      if (i == 0 && ttl_seconds_ > 0) batch.push_back(expire(key));
      if (bytes >= kBytesWritten || batch.size() >= kMostAtOnce) QUIRE_RETURN_IF_ERROR(send());
    }
    batch.push_back(command({"HSET", key, kRecordField, record()}));
    // An eviction between two batches took the time limit with the hash.
    if (ttl_seconds_ > 0) batch.push_back(expire(key));
    return send();
  }

  Status remove(const std::string& name, Deadline deadline) override {
    return run(
        name, {command({"UNLINK", key_of(name)})}, {}, deadline,
        [](std::size_t, RedisReply reply) { return reply.is_error() ? odd(reply) : Status(); });
  }

  bool has_leases() const override { return true; }

  Result<bool> take_lease(const std::string& name, std::string_view token,
                          std::chrono::milliseconds time, Deadline deadline) override {
    const std::string key = lease_key_of(name);
    // A command that was sent twice over a broken connection finds the lease taken, by itself. So
    // what counts is whose it is.
    bool mine = false;
    QUIRE_RETURN_IF_ERROR(
        run(name,
            {command({"SET", key, token, "NX", "PX", std::to_string(time.count())}),
             command({"GET", key})},
            {.most = 2}, deadline, [&](std::size_t i, RedisReply reply) {
              if (reply.is_error()) return odd(reply);
              if (i == 1) mine = reply.kind == RedisReply::Kind::kString && reply.text == token;
              return Status();
            }));
    return mine;
  }

  Result<bool> renew_lease(const std::string& name, std::string_view token,
                           std::chrono::milliseconds time, Deadline deadline) override {
    bool mine = false;
    QUIRE_RETURN_IF_ERROR(run(
        name,
        {command({"EVAL", kRenew, "1", lease_key_of(name), token, std::to_string(time.count())})},
        {}, deadline, [&](std::size_t, RedisReply reply) {
          if (reply.kind != RedisReply::Kind::kInteger) return odd(reply);
          mine = reply.integer == 1;
          return Status();
        }));
    return mine;
  }

  Status end_lease(const std::string& name, std::string_view token, Deadline deadline) override {
    return run(
        name, {command({"EVAL", kEnd, "1", lease_key_of(name), token})}, {}, deadline,
        [](std::size_t, RedisReply reply) { return reply.is_error() ? odd(reply) : Status(); });
  }

  bool has_accounts() const override { return true; }

  Result<std::vector<std::string>> count_in(const Entry& entry, std::uint64_t limit, bool expires,
                                            Deadline deadline) override {
    std::vector<std::string> gone;
    QUIRE_RETURN_IF_ERROR(
        run_account(entry,
                    command({"EVAL", std::string(kForget) + std::string(kCountIn), "2",
                             times_key_of(entry.account), bytes_key_of(entry.account),
                             entry.segment, std::to_string(entry.bytes), std::to_string(limit),
                             std::to_string(expires ? ttl_seconds_ : 0)}),
                    deadline, [&](std::size_t, RedisReply reply) {
                      if (reply.kind != RedisReply::Kind::kArray) return odd(reply);
                      for (RedisReply& item : reply.items) {
                        if (item.kind != RedisReply::Kind::kString) return odd(item);
                        gone.push_back(std::move(item.text));
                      }
                      return Status();
                    }));
    return gone;
  }

  Status count_out(const Entry& entry, Deadline deadline) override {
    return run_account(
        entry,
        command({"EVAL", std::string(kForget) + std::string(kCountOut), "2",
                 times_key_of(entry.account), bytes_key_of(entry.account), entry.segment}),
        deadline,
        [](std::size_t, RedisReply reply) { return reply.is_error() ? odd(reply) : Status(); });
  }

  std::unique_ptr<RemoteTier> second_way() override {
    return std::make_unique<RedisTier>(cluster_, ttl_seconds_, true);
  }
  void stop() override { cluster_->stop(); }

 private:
  static std::string command(std::initializer_list<std::string_view> arguments) {
    std::string out;
    append_redis_command(out, arguments);
    return out;
  }
  std::string expire(const std::string& key) const {
    return command({"EXPIRE", key, std::to_string(ttl_seconds_)});
  }
  static Status odd(const RedisReply& reply) {
    return Status::io("Redis sent an unexpected reply: " +
                      (reply.is_error() ? reply.text.substr(0, 200) : "of another kind"));
  }
  Status read(const std::string& name, const std::vector<std::string>& commands,
              RedisCluster::Pipeline pipeline, Deadline deadline,
              const RedisCluster::TakeReply& take, const RedisCluster::PlaceReply& place = {}) {
    const std::uint16_t slot = redis_slot(key_of(name));
    return of_replicas_ ? cluster_->run_at_replica(slot, commands, pipeline, deadline, take, place)
                        : cluster_->run(slot, commands, pipeline, deadline, take, place);
  }
  Status run(const std::string& name, const std::vector<std::string>& commands,
             RedisCluster::Pipeline pipeline, Deadline deadline,
             const RedisCluster::TakeReply& take) {
    return cluster_->run(redis_slot(key_of(name)), commands, pipeline, deadline, take);
  }

  Status run_account(const Entry& entry, const std::string& command, Deadline deadline,
                     const RedisCluster::TakeReply& take) {
    return cluster_->run(redis_slot(times_key_of(entry.account)), std::span(&command, 1), {},
                         deadline, take);
  }

  const std::shared_ptr<RedisCluster> cluster_;
  const std::int64_t ttl_seconds_;
  const bool of_replicas_;  // reads are; the rest is for the owners of slots
};

}  // namespace

std::unique_ptr<RemoteTier> make_redis_tier(RedisServer server, std::int64_t ttl_seconds) {
  return std::make_unique<RedisTier>(std::make_shared<RedisCluster>(std::move(server)), ttl_seconds,
                                     false);
}

}  // namespace quire
