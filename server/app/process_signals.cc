#include "server/app/process_signals.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>

namespace quire {

struct ProcessSignals::Impl {
  boost::asio::io_context io;
  boost::asio::signal_set set{io, SIGTERM, SIGINT, SIGHUP};
  bool closed = false;  // used only inside io.run(), or between runs by its thread
};

ProcessSignals::ProcessSignals() : impl_(std::make_unique<Impl>()) {}
ProcessSignals::~ProcessSignals() = default;

int ProcessSignals::next() {
  int signal = 0;
  if (impl_->closed) return signal;
  impl_->set.async_wait([&signal](const boost::system::error_code& error, int number) {
    if (!error) signal = number;
  });
  impl_->io.restart();
  impl_->io.run();
  return signal;
}

void ProcessSignals::close() {
  boost::asio::post(impl_->io, [impl = impl_.get()] {
    impl->closed = true;
    impl->set.cancel();
  });
}

}  // namespace quire
