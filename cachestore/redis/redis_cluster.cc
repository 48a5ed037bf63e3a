#include "cachestore/redis/redis_cluster.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <thread>
#include <utility>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::uint16_t kSlots = 16384;
constexpr int kMaxRounds = 6;
/// After which the topology is learned again where a replica was wanted and none is known: a
/// cluster names one some time after it has begun to follow.
constexpr auto kLookForReplicas = std::chrono::seconds(10);
/// How long a replica that could not be read is left alone.
constexpr auto kReplicaPause = std::chrono::seconds(10);
/// Idle connections kept to one node.
constexpr std::size_t kMaxIdle = 8;
/// Bytes of replies under way in one connection. The least was measured on one machine: with more,
/// what the server writes no longer fits its cores' caches.
constexpr double kLeastUnderWay = 512u << 10, kMostUnderWay = 16u << 20;
/// The fastest network that is kept busy.
constexpr double kBytesPerMs = 2.5e6;
/// Where even the fastest of the last answers took so long, the distance counts, though the next
/// hop may be near: a proxy.
constexpr double kFarMs = 5;

constexpr std::array<std::uint16_t, 256> make_crc_table() {
  std::array<std::uint16_t, 256> table{};
  for (unsigned i = 0; i < 256; ++i) {
    unsigned crc = i << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000u) ? (crc << 1) ^ 0x1021u : crc << 1;
    table[i] = static_cast<std::uint16_t>(crc);
  }
  return table;
}
constexpr auto kCrcTable = make_crc_table();

/// Event loops of a cluster. Each receives about as much as a network of 20 Gbit/s brings.
int num_loops() { return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4); }

/// Returns the port, or none if the text is no port.
std::optional<std::uint16_t> port_of(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0) return std::nullopt;
  return port;
}

/// Returns the node that "MOVED 3999 host:port" or "ASK 3999 host:port" names; a node that does not
/// know its own address sends an empty host, which means `from`.
std::optional<RemoteHost> target_of(const RedisReply& reply, const RemoteHost& from) {
  const std::string_view text = reply.text;
  const std::size_t space = text.rfind(' '), colon = text.rfind(':');
  if (space == text.npos || colon == text.npos || colon < space) return std::nullopt;
  const auto port = port_of(text.substr(colon + 1));
  if (!port) return std::nullopt;
  const std::string name(text.substr(space + 1, colon - space - 1));
  return RemoteHost{name.empty() ? from.name : name, *port};
}

/// Returns whether the node refuses work that another moment, or another node, would take.
bool passes_by(const RedisReply& reply) {
  for (const std::string_view word :
       {"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "BUSY", "NOREPLICAS"})
    if (reply.is_error(word)) return true;
  return false;
}

}  // namespace

std::uint16_t redis_slot(std::string_view key) {
  if (const std::size_t open = key.find('{'); open != key.npos) {
    const std::size_t close = key.find('}', open + 1);
    if (close != key.npos && close != open + 1) key = key.substr(open + 1, close - open - 1);
  }
  std::uint16_t crc = 0;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    crc = static_cast<std::uint16_t>((crc << 8) ^ kCrcTable[((crc >> 8) ^ byte) & 0xff]);
  }
  return crc % kSlots;
}

struct RedisCluster::Topology {
  std::vector<RemoteHost> nodes;
  std::vector<std::vector<RemoteHost>> replicas;  ///< of each node
  std::vector<std::uint16_t> node_of_slot;        ///< kNobody: no node has the slot
  static constexpr std::uint16_t kNobody = UINT16_MAX;

  std::optional<RemoteHost> node(std::uint16_t slot) const {
    const std::uint16_t n = node_of_slot[slot];
    return n < nodes.size() ? std::optional(nodes[n]) : std::nullopt;
  }
  std::span<const RemoteHost> replicas_of(std::uint16_t slot) const {
    const std::uint16_t n = node_of_slot[slot];
    return n < replicas.size() ? replicas[n] : std::span<const RemoteHost>();
  }
  /// Returns the topology of one server that has every slot.
  static Topology one(RemoteHost server, std::vector<RemoteHost> its_replicas) {
    Topology out;
    out.nodes.push_back(std::move(server));
    out.replicas.push_back(std::move(its_replicas));
    out.node_of_slot.assign(kSlots, 0);
    return out;
  }
};

struct RedisCluster::Work {
  std::span<const std::string> commands;
  Pipeline pipeline;
  const TakeReply& take;
  const PlaceReply& place;
  std::vector<std::size_t> open;  ///< to be sent, in order
  /// Where those go that the node redirected: to the new owner, or only this once.
  std::map<RemoteHost, std::vector<std::size_t>> moved{}, asked{};
  bool asking = false;      ///< each command is preceded by ASKING
  bool of_replica = false;  ///< they are preceded by READONLY
  bool used = false;        ///< a reply has arrived, so the connection was alive
};

RedisCluster::RedisCluster(RedisServer server)
    : server_(std::move(server)), loops_(num_loops(), stopping_) {}
RedisCluster::~RedisCluster() = default;

Result<RedisCluster::Connection> RedisCluster::connection(const RemoteHost& host,
                                                          Deadline deadline) {
  {
    const std::lock_guard lock(mu_);
    if (auto it = idle_.find(host); it != idle_.end() && !it->second.empty()) {
      Connection out = std::move(it->second.back());
      it->second.pop_back();
      return out;
    }
  }
  return RedisConnection::open(host, server_, deadline, stopping_);
}

void RedisCluster::keep(const RemoteHost& host, Connection connection) {
  const std::lock_guard lock(mu_);
  auto& idle = idle_[host];
  if (idle.size() < kMaxIdle) idle.push_back(std::move(connection));
}

void RedisCluster::drop_idle(const RemoteHost& host) {
  std::vector<Connection> gone;
  const std::lock_guard lock(mu_);
  if (auto it = idle_.find(host); it != idle_.end()) gone.swap(it->second);
}

void RedisCluster::forget_topology() {
  const std::lock_guard lock(mu_);
  topology_.reset();
}

/// Has the topology be learned anew, but kept where nobody tells of another: who gave no answer in
/// time may be slow, or its machine may be gone, which does not even refuse a connection.
void RedisCluster::doubt(const RemoteHost& host) {
  const std::lock_guard lock(mu_);
  silent_.insert(host);
  look_again_ = Clock::time_point::min();
}

namespace {

/// Sends one command and returns the reply to it.
Result<RedisReply> exchange(RedisConnection& connection,
                            std::initializer_list<std::string_view> command,
                            Clock::time_point deadline) {
  std::string bytes;
  append_redis_command(bytes, command);
  QUIRE_RETURN_IF_ERROR(connection.send(bytes, deadline));
  return connection.receive(deadline);
}

/// Returns the node that an array beginning with address and port names. A node that does not know
/// its own address sends none, or "?", which means `from`.
std::optional<RemoteHost> node_of(const RedisReply& reply, const std::string& from) {
  if (reply.kind != RedisReply::Kind::kArray || reply.items.size() < 2) return std::nullopt;
  const RedisReply& port = reply.items[1];
  const auto number = port.kind == RedisReply::Kind::kInteger
                          ? port_of(std::to_string(port.integer))
                          : port_of(port.text);
  if (!number) return std::nullopt;
  const std::string& name = reply.items[0].text;
  return RemoteHost{name.empty() || name == "?" ? from : name, *number};
}

/// Returns the replicas in the reply of a master to ROLE. They are of use only, so anything odd is
/// none.
std::vector<RemoteHost> replicas_in_role(const RedisReply& reply, const std::string& from) {
  std::vector<RemoteHost> out;
  if (reply.kind != RedisReply::Kind::kArray || reply.items.size() < 3) return out;
  for (const RedisReply& replica : reply.items[2].items)
    if (auto node = node_of(replica, from)) out.push_back(std::move(*node));
  return out;
}

/// Returns the replicas in a reply to SENTINEL REPLICAS that follow their master.
std::vector<RemoteHost> replicas_of_sentinel(const RedisReply& reply) {
  std::vector<RemoteHost> out;
  for (const RedisReply& replica : reply.items) {
    std::string name;
    std::optional<std::uint16_t> port;
    bool follows = false, down = false;  // s_down, o_down or disconnected
    for (std::size_t i = 0; i + 1 < replica.items.size(); i += 2) {
      const std::string &field = replica.items[i].text, &value = replica.items[i + 1].text;
      if (field == "ip") name = value;
      if (field == "port") port = port_of(value);
      if (field == "master-link-status") follows = value == "ok";
      if (field == "flags")
        down = value.find("down") != value.npos || value.find("disc") != value.npos;
    }
    if (!name.empty() && port && follows && !down) out.push_back({name, *port});
  }
  return out;
}

}  // namespace

Result<RedisCluster::Topology> RedisCluster::learn(const RemoteHost& host, Deadline deadline) {
  const bool sentinel = !server_.sentinel_master.empty();
  RedisServer login = server_;
  if (sentinel) {
    login.user = server_.sentinel_user;
    login.password = server_.sentinel_password;
  }
  QUIRE_ASSIGN_OR_RETURN(Connection c, RedisConnection::open(host, login, deadline, stopping_));
  if (sentinel) return learn_from_sentinel(*c, deadline);
  auto out = learn_slots(host, *c, deadline);
  if (out.ok()) keep(host, std::move(c));
  return out;
}

Result<RedisCluster::Topology> RedisCluster::learn_from_sentinel(RedisConnection& sentinel,
                                                                 Deadline deadline) const {
  const std::string& master = server_.sentinel_master;
  QUIRE_ASSIGN_OR_RETURN(
      const RedisReply reply,
      exchange(sentinel, {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", master}, deadline));
  if (reply.is_error("NOAUTH") || reply.is_error("NOPERM"))
    return Status(Code::kFailedPrecondition,
                  "the sentinels refuse this client: " + reply.text +
                      "; name a user of theirs with sentinel_user and sentinel_password",
                  "remote.url");
  if (reply.is_error()) return Status::unavailable("a sentinel refuses work: " + reply.text);
  const auto node = node_of(reply, "");
  if (!node || node->name.empty())
    return Status::unavailable("the sentinels know no master '" + master + "'");
  QUIRE_ASSIGN_OR_RETURN(const RedisReply replicas,
                         exchange(sentinel, {"SENTINEL", "REPLICAS", master}, deadline));
  return Topology::one(*node, replicas_of_sentinel(replicas));
}

Result<RedisCluster::Topology> RedisCluster::learn_slots(const RemoteHost& host,
                                                         RedisConnection& connection,
                                                         Deadline deadline) const {
  QUIRE_ASSIGN_OR_RETURN(const RedisReply reply,
                         exchange(connection, {"CLUSTER", "SLOTS"}, deadline));
  if (reply.is_error()) {
    if (reply.is_error("NOAUTH") || reply.is_error("NOPERM"))
      return Status(Code::kFailedPrecondition,
                    host.name + " refuses this client: " + reply.text +
                        "; name a user that may run CLUSTER SLOTS in remote.url",
                    "remote.url");
    if (passes_by(reply)) return Status::unavailable(host.name + " refuses work: " + reply.text);
    // A server without cluster support has every slot.
    QUIRE_ASSIGN_OR_RETURN(const RedisReply role, exchange(connection, {"ROLE"}, deadline));
    return Topology::one(host, replicas_in_role(role, host.name));
  }
  Topology out;
  out.node_of_slot.assign(kSlots, Topology::kNobody);
  const auto odd = [&] { return Status::io(host.name + " sent an odd reply to CLUSTER SLOTS"); };
  using Kind = RedisReply::Kind;
  if (reply.kind != Kind::kArray) return odd();
  for (const RedisReply& range : reply.items) {
    if (range.kind != Kind::kArray || range.items.size() < 3) return odd();
    const std::int64_t first = range.items[0].integer, last = range.items[1].integer;
    const auto owner = node_of(range.items[2], host.name);
    if (first < 0 || last < first || last >= kSlots || !owner) return odd();
    const auto at = std::ranges::find(out.nodes, *owner);
    const auto index = static_cast<std::uint16_t>(at - out.nodes.begin());
    if (at == out.nodes.end()) {
      out.nodes.push_back(*owner);
      auto& replicas = out.replicas.emplace_back();
      for (std::size_t i = 3; i < range.items.size(); ++i)
        if (auto replica = node_of(range.items[i], host.name)) replicas.push_back(*replica);
    }
    std::fill(out.node_of_slot.begin() + first, out.node_of_slot.begin() + last + 1, index);
  }
  if (out.nodes.empty())
    return Status::unavailable("the cluster of " + host.name + " has no slots");
  return out;
}

Result<std::shared_ptr<const RedisCluster::Topology>> RedisCluster::topology(Deadline deadline) {
  std::vector<RemoteHost> hosts;
  std::shared_ptr<const Topology> old;
  std::set<RemoteHost> silent;
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mu_);
    if (topology_ && now < look_again_) return topology_;
    old = topology_;
    look_again_ = Clock::time_point::max();
    silent.swap(silent_);
    if (server_.sentinel_master.empty()) hosts = known_;
  }
  for (const RemoteHost& host : server_.hosts)
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  std::stable_partition(hosts.begin(), hosts.end(),
                        [&](const RemoteHost& h) { return !silent.contains(h); });
  // Time is left for the old one, of which less is expected where one of its nodes is silent.
  const auto until = old ? now + (deadline - now) / (silent.empty() ? 4 : 2) : deadline;
  auto learned = learn_from_any(hosts, until);
  if (!learned.ok() && old) return old;
  QUIRE_RETURN_IF_ERROR(learned.status());
  const auto out = std::make_shared<const Topology>(std::move(*learned));
  const std::lock_guard lock(mu_);
  topology_ = out;
  known_ = out->nodes;
  return out;
}

Result<RedisCluster::Topology> RedisCluster::learn_from_any(std::span<const RemoteHost> hosts,
                                                            Deadline deadline) {
  Status last;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    // One node that does not answer must not take the time of the others.
    const auto now = Clock::now();
    auto learned = learn(hosts[i], now + (deadline - now) / static_cast<int>(hosts.size() - i));
    if (learned.ok()) return learned;
    last = learned.status();
    if (last.code() == Code::kFailedPrecondition || last.code() == Code::kInvalidArgument) break;
  }
  return last;
}

double RedisCluster::AnswerTimes::shortest() const {
  return added == 0 ? 0
                    : *std::min_element(last.begin(), last.begin() + std::min(added, last.size()));
}

/// Returns how many commands may be under way.
std::size_t RedisCluster::window(const RemoteHost& host, const RedisConnection& connection,
                                 Pipeline pipeline) {
  if (pipeline.reply_bytes == 0) return pipeline.most;
  double ms = 0;
  {
    const std::lock_guard lock(mu_);
    ms = answer_times_[host].shortest();
  }
  if (ms < kFarMs)
    ms = std::chrono::duration<double, std::milli>(connection.shortest_round_trip()).count();
  const double bytes = std::clamp(2 * ms * kBytesPerMs, kLeastUnderWay, kMostUnderWay);
  return std::clamp<std::size_t>(
      static_cast<std::size_t>(bytes / static_cast<double>(pipeline.reply_bytes)), 1,
      pipeline.most);
}

/// Sends the open commands of some work over one connection and takes the replies.
class RedisCluster::Exchange {
 public:
  /// `most`: commands under way at once. All must outlive the object.
  Exchange(const RemoteHost& host, RedisConnection& connection, Work& work, std::size_t most,
           Deadline deadline)
      : host_(host), connection_(connection), work_(work), most_(most), deadline_(deadline) {
    if (work.of_replica) append_redis_command(text_, {"READONLY"});
  }

  /// As RedisLoops::Work.
  Result<RedisLoops::Step> step() {
    for (std::size_t replies = 0; taken_ < work_.open.size(); ++replies) {
      if (replies > most_) return RedisLoops::Step::kGoesOn;
      QUIRE_RETURN_IF_ERROR(send_more());
      const std::size_t index = work_.open[taken_];
      RedisReplyStream::PlaceString place;
      const bool leading = led_ < num_leading();
      if (work_.place && !leading)
        place = [this, index](std::size_t bytes) { return work_.place(index, bytes); };
      QUIRE_ASSIGN_OR_RETURN(std::optional<RedisReply> reply, connection_.receive_now(place));
      if (!reply) return RedisLoops::Step::kWaits;
      if (leading) {
        QUIRE_RETURN_IF_ERROR(take_leading(*reply));
        continue;
      }
      led_ = 0;
      ++taken_;
      QUIRE_RETURN_IF_ERROR(take(index, std::move(*reply)));
    }
    return RedisLoops::Step::kDone;
  }

 private:
  /// Returns how many replies come before that to the next command.
  std::size_t num_leading() const {
    return (work_.of_replica && taken_ == 0 ? 1u : 0u) + (work_.asking ? 1u : 0u);
  }

  /// More is asked for once half of what was under way has come, so that the node never waits for
  /// us. Commands are short beside the room of a socket, so this does not wait.
  Status send_more() {
    const std::size_t count = work_.open.size();
    if (sent_ == count || 2 * (sent_ - taken_) > most_) return {};
    for (; sent_ < count && sent_ - taken_ < most_; ++sent_) {
      if (work_.asking) append_redis_command(text_, {"ASKING"});
      text_ += work_.commands[work_.open[sent_]];
    }
    Status sent = connection_.send(text_, deadline_);
    text_.clear();
    return sent;
  }

  Status take_leading(const RedisReply& reply) {
    const bool to_readonly = work_.of_replica && taken_ == 0 && led_ == 0;
    ++led_;
    // A server without a cluster refuses READONLY, and reads of its replica need none.
    if (to_readonly && reply.is_error("NOPERM"))
      return Status::not_found(host_.name + " lets this client read no replica: " + reply.text);
    return {};
  }

  Status take(std::size_t index, RedisReply reply) {
    work_.used = true;
    const bool moved = reply.is_error("MOVED");
    if (moved || reply.is_error("ASK")) {
      const auto target = target_of(reply, host_);
      if (!target) return Status::io(host_.name + " sent an odd redirection: " + reply.text);
      (moved ? work_.moved : work_.asked)[*target].push_back(index);
      return {};
    }
    if (passes_by(reply)) return Status::unavailable(host_.name + " refuses work: " + reply.text);
    // It takes nothing new, and answers all the same.
    if (reply.is_error("OOM")) return Status::exhausted(host_.name + " is full: " + reply.text);
    if (reply.is_error("NOAUTH") || reply.is_error("NOPERM"))
      return Status(Code::kFailedPrecondition,
                    host_.name + " refuses this client: " + reply.text +
                        "; name a user that may read and write keys of quire in remote.url",
                    "remote.url");
    return work_.take(index, std::move(reply));
  }

  const RemoteHost& host_;
  RedisConnection& connection_;
  Work& work_;
  const std::size_t most_;
  const Deadline deadline_;
  std::string text_;                  // to be sent
  std::size_t sent_ = 0, taken_ = 0;  // of the open commands
  std::size_t led_ = 0;               // replies that came before that to the next command
};

/// Sends the open commands to one node. On return without an error `work.moved` and `work.asked`
/// hold those that other nodes must answer, and nothing is open.
Status RedisCluster::run_at(const RemoteHost& host, Work& work, Deadline deadline) {
  QUIRE_ASSIGN_OR_RETURN(Connection c, connection(host, deadline));
  const auto begun = Clock::now();
  Exchange exchange(host, *c, work, window(host, *c, work.pipeline), deadline);
  const RedisLoops::Work step = [&] { return exchange.step(); };
  QUIRE_RETURN_IF_ERROR(work.pipeline.reply_bytes > 0 ? loops_.run(*c, deadline, step)
                                                      : RedisLoops::run_here(*c, deadline, step));
  if (work.open.size() == 1) {
    const std::lock_guard lock(mu_);
    answer_times_[host].add(ms_between(begun, Clock::now()));
  }
  work.open.clear();
  keep(host, std::move(c));
  return {};
}

Status RedisCluster::run(std::uint16_t slot, std::span<const std::string> commands,
                         Pipeline pipeline, Deadline deadline, const TakeReply& take,
                         const PlaceReply& place) {
  QUIRE_ASSIGN_OR_RETURN(auto known, topology(deadline));
  std::optional<RemoteHost> owner = known->node(slot);
  std::map<RemoteHost, std::vector<std::size_t>> moved, asked;
  for (std::size_t i = 0; owner && i < commands.size(); ++i) moved[*owner].push_back(i);
  if (!owner) {
    forget_topology();
    return Status::unavailable("no node of the cluster has slot " + std::to_string(slot));
  }
  bool again = true;
  for (int round = 0; round < kMaxRounds; ++round) {
    decltype(moved) next_moved, next_asked;
    for (const bool asking : {false, true}) {
      for (auto& [host, open] : asking ? asked : moved) {
        Work work{.commands = commands,
                  .pipeline = pipeline,
                  .take = take,
                  .place = place,
                  .open = std::move(open),
                  .asking = asking};
        const Status s = run_at(host, work, deadline);
        if (s.code() == Code::kUnavailable && again && !work.used) {
          // An idle connection that the server has closed meanwhile, or a node that is gone.
          again = false;
          drop_idle(host);
          forget_topology();
          QUIRE_ASSIGN_OR_RETURN(known, topology(deadline));
          owner = known->node(slot);
          if (!owner) return s;
          auto& to = next_moved[*owner];
          to.insert(to.end(), work.open.begin(), work.open.end());
          continue;
        }
        if (!s.ok()) {
          if (s.code() == Code::kUnavailable) forget_topology();
          if (s.code() == Code::kDeadlineExceeded && !work.used) doubt(host);
          return s;
        }
        if (!work.moved.empty()) forget_topology();
        for (auto& [target, list] : work.moved) {
          auto& to = next_moved[target];
          to.insert(to.end(), list.begin(), list.end());
        }
        for (auto& [target, list] : work.asked) {
          auto& to = next_asked[target];
          to.insert(to.end(), list.begin(), list.end());
        }
      }
    }
    moved = std::move(next_moved);
    asked = std::move(next_asked);
    if (moved.empty() && asked.empty()) return {};
  }
  return Status::unavailable("the cluster redirects slot " + std::to_string(slot) + " in a circle");
}

Status RedisCluster::run_at_replica(std::uint16_t slot, std::span<const std::string> commands,
                                    Pipeline pipeline, Deadline deadline, const TakeReply& take,
                                    const PlaceReply& place) {
  QUIRE_ASSIGN_OR_RETURN(const auto known, topology(deadline));
  const auto replicas = known->replicas_of(slot);
  const auto now = Clock::now();
  const RemoteHost* chosen = nullptr;
  {
    const std::lock_guard lock(mu_);
    // The same one for all values of a segment, as others may lag.
    for (std::size_t i = 0; i < replicas.size() && !chosen; ++i) {
      const RemoteHost& host = replicas[(slot + i) % replicas.size()];
      const auto it = paused_replicas_.find(host);
      if (it == paused_replicas_.end() || it->second <= now) chosen = &host;
    }
    if (replicas.empty()) look_again_ = std::min(look_again_, now + kLookForReplicas);
  }
  if (!chosen)
    return Status::not_found("slot " + std::to_string(slot) + " has no replica that can be read");
  const RemoteHost& host = *chosen;
  Work work{.commands = commands,
            .pipeline = pipeline,
            .take = take,
            .place = place,
            .open = {},
            .of_replica = true};
  for (std::size_t i = 0; i < commands.size(); ++i) work.open.push_back(i);
  Status s = run_at(host, work, deadline);
  if (s.code() == Code::kUnavailable && !work.used) {
    drop_idle(host);  // an idle connection that the server has closed meanwhile
    s = run_at(host, work, deadline);
  }
  const bool moved = !(work.moved.empty() && work.asked.empty());
  if (s.ok() && moved)
    s = Status::unavailable(host.name + " is no replica of slot " + std::to_string(slot));
  if (s.code() == Code::kUnavailable) {
    if (moved) forget_topology();
    const std::lock_guard lock(mu_);
    paused_replicas_[host] = now + kReplicaPause;
  }
  return s;
}

}  // namespace quire
