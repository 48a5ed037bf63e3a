#include "server/http/tls_certificate.h"

#include <openssl/ssl.h>

#include <utility>

namespace quire {
namespace ssl = boost::asio::ssl;
using boost::system::error_code;

namespace {

Result<std::shared_ptr<ssl::context>> read_files(const std::string& certificate_file,
                                                 const std::string& key_file) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  error_code ec;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                           ssl::context::no_sslv3 | ssl::context::no_tlsv1 |
                           ssl::context::no_tlsv1_1,
                       ec);
  if (ec) return Status::internal("TLS cannot start: " + ec.message());
  SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
  context->use_certificate_chain_file(certificate_file, ec);
  if (ec)
    return Status::invalid("server.tls_certificate", "no PEM certificate can be read from '" +
                                                         certificate_file + "': " + ec.message());
  // Without this OpenSSL asks for the pass phrase at the terminal, and waits there.
  bool locked = false;
  context->set_password_callback(
      [&locked](std::size_t, ssl::context::password_purpose) {
        locked = true;
        return std::string();
      },
      ec);
  if (ec) return Status::internal("TLS cannot start: " + ec.message());
  context->use_private_key_file(key_file, ssl::context::pem, ec);
  if (locked)
    return Status::invalid("server.tls_key", "the key in '" + key_file +
                                                 "' needs a pass phrase, which nobody can give a "
                                                 "service; write it without one: openssl rsa -in "
                                                 "FILE -out FILE");
  if (ec)
    return Status::invalid("server.tls_key", "no PEM key of the certificate '" + certificate_file +
                                                 "' can be read from '" + key_file +
                                                 "': " + ec.message());
  return context;
}

}  // namespace

Result<std::shared_ptr<TlsCertificate>> TlsCertificate::load(std::string certificate_file,
                                                             std::string key_file) {
  std::shared_ptr<TlsCertificate> out(
      new TlsCertificate(std::move(certificate_file), std::move(key_file)));
  QUIRE_ASSIGN_OR_RETURN(out->context_, out->read_again());
  return out;
}

Result<TlsCertificate::Context> TlsCertificate::read_again() const {
  return read_files(certificate_file_, key_file_);
}

void TlsCertificate::use(Context context) {
  std::lock_guard lock(mu_);
  context_ = std::move(context);
}

TlsCertificate::Context TlsCertificate::context() const {
  std::lock_guard lock(mu_);
  return context_;
}

}  // namespace quire
