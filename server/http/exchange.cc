#include "server/http/exchange.h"

#include "server/http/reply_channel.h"

namespace quire {

bool ReplyChannel::push(ReplyPiece piece) {
  using Kind = ReplyPiece::Kind;
  bool wake = false, too_slow = false;
  std::function<void()> left;
  {
    std::lock_guard lock(mu_);
    if (closed_ || complete_) return false;
    const bool opens = piece.kind == Kind::kRespond || piece.kind == Kind::kStreamHead;
    if (opens == begun_ && piece.kind != Kind::kAbort) return false;
    if (piece.kind == Kind::kChunk &&
        queued_bytes_ + piece.bytes.size() > Exchange::kMaxQueuedBytes) {
      // The client reads more slowly than the answer grows. Its reply is given up, so that memory
      // does not fill.
      too_slow = left_ = true;
      queue_.clear();
      piece = ReplyPiece{Kind::kAbort, {}, {}};
      left = std::exchange(disconnected_, nullptr);
    }
    begun_ = true;
    complete_ = piece.kind == Kind::kRespond || piece.kind == Kind::kFinish ||
                piece.kind == Kind::kAbort;
    queued_bytes_ += piece.bytes.size();
    queue_.push_back(std::move(piece));
    wake = std::exchange(waiting_, false);
  }
  if (too_slow) drained_.notify_all();
  if (wake) wake_();
  if (left) left();
  return !too_slow;
}

bool ReplyChannel::wait_for_room(std::size_t bytes, std::chrono::milliseconds at_most) {
  std::unique_lock lock(mu_);
  const auto room = [&] { return queued_bytes_ + bytes <= Exchange::kMaxQueuedBytes; };
  drained_.wait_for(lock, at_most, [&] { return closed_ || left_ || room(); });
  return !closed_ && !left_ && room();
}

void ReplyChannel::set_ping(std::string piece, std::chrono::milliseconds interval) {
  std::lock_guard lock(mu_);
  ping_ = std::move(piece);
  ping_interval_ = interval;
}

void ReplyChannel::on_disconnect(std::function<void()> callback) {
  {
    std::lock_guard lock(mu_);
    if (!left_) {
      disconnected_ = std::move(callback);
      return;
    }
  }
  if (callback) callback();
}

bool ReplyChannel::gone() const {
  std::lock_guard lock(mu_);
  return left_;
}

void ReplyChannel::abandon() {
  bool begun;
  {
    std::lock_guard lock(mu_);
    if (complete_ || closed_) return;
    begun = begun_;
  }
  if (begun) {
    (void)push({ReplyPiece::Kind::kAbort, {}, {}});
    return;
  }
  HttpResponse response;
  response.status = 500;  // the connection fills in the body
  (void)push({ReplyPiece::Kind::kRespond, std::move(response), {}});
}

std::deque<ReplyPiece> ReplyChannel::take_or_wait() {
  std::lock_guard lock(mu_);
  waiting_ = queue_.empty();
  queued_bytes_ = 0;
  drained_.notify_all();
  return std::exchange(queue_, {});
}

std::pair<std::string, std::chrono::milliseconds> ReplyChannel::ping() const {
  std::lock_guard lock(mu_);
  return {ping_, ping_interval_};
}

void ReplyChannel::close(bool client_left) {
  std::function<void()> callback;
  {
    std::lock_guard lock(mu_);
    if (closed_) return;
    closed_ = true;
    waiting_ = false;
    queue_.clear();
    left_ = left_ || client_left;
    if (client_left)
      callback = std::exchange(disconnected_, nullptr);
    else
      disconnected_ = nullptr;
  }
  drained_.notify_all();
  if (callback) callback();
}

Exchange::Exchange(HttpRequest r, std::shared_ptr<ReplyChannel> channel)
    : request(std::move(r)), channel_(std::move(channel)) {}
Exchange::~Exchange() = default;

void Exchange::respond(HttpResponse response) {
  (void)channel_->push({ReplyPiece::Kind::kRespond, std::move(response), {}});
}
void Exchange::start_stream(HttpResponse response) {
  (void)channel_->push({ReplyPiece::Kind::kStreamHead, std::move(response), {}});
}
bool Exchange::write(std::string piece) {
  return channel_->push({ReplyPiece::Kind::kChunk, {}, std::move(piece)});
}
void Exchange::finish() { (void)channel_->push({ReplyPiece::Kind::kFinish, {}, {}}); }
void Exchange::abort() { (void)channel_->push({ReplyPiece::Kind::kAbort, {}, {}}); }
void Exchange::set_ping(std::string piece, std::chrono::milliseconds interval) {
  channel_->set_ping(std::move(piece), interval);
}
void Exchange::on_disconnect(std::function<void()> callback) {
  channel_->on_disconnect(std::move(callback));
}
void Exchange::clear_on_disconnect() { channel_->on_disconnect(nullptr); }
bool Exchange::wait_for_room(std::size_t bytes, std::chrono::milliseconds at_most) {
  return channel_->wait_for_room(bytes, at_most);
}
bool Exchange::client_gone() const { return channel_->gone(); }

}  // namespace quire
