/// The certificate with which the server answers over TLS.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"

namespace quire {

/// A certificate chain and its private key from PEM files, and TLS 1.2 or newer. Connections keep
/// the one that they began with. Threads: any.
class TlsCertificate {
 public:
  /// Reads both files. Errors: kInvalidArgument (server.tls_certificate, server.tls_key: the file
  /// cannot be read, is no PEM, or the key does not belong to the certificate).
  static Result<std::shared_ptr<TlsCertificate>> load(std::string certificate_file,
                                                      std::string key_file);
  using Context = std::shared_ptr<boost::asio::ssl::context>;
  /// Reads the files again. Nothing changes before use(). Errors: as load().
  Result<Context> read_again() const;
  /// New connections begin with this certificate.
  void use(Context context);
  Context context() const;

 private:
  TlsCertificate(std::string certificate_file, std::string key_file)
      : certificate_file_(std::move(certificate_file)), key_file_(std::move(key_file)) {}

  const std::string certificate_file_, key_file_;
  mutable std::mutex mu_;
  Context context_;  // guarded by mu_
};

}  // namespace quire
