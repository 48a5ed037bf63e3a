# Packages by CPack (QUIRE_PACKAGE): packaging/build_deb.sh makes a Debian package with the service,
# its systemd unit, the manual page and completion.
include(GNUInstallDirs)
set(quire_generated "${CMAKE_BINARY_DIR}/packaging")
add_custom_command(
  OUTPUT "${quire_generated}/quire.1" "${quire_generated}/quire"
  COMMAND ${CMAKE_COMMAND} -E make_directory "${quire_generated}"
  COMMAND sh -c "\"$0\" completion man >\"$1\"" "$<TARGET_FILE:quire>"
    "${quire_generated}/quire.1"
  COMMAND sh -c "\"$0\" completion bash >\"$1\"" "$<TARGET_FILE:quire>"
    "${quire_generated}/quire"
  DEPENDS quire
  VERBATIM)
add_custom_target(quire_package_files ALL
  DEPENDS "${quire_generated}/quire.1" "${quire_generated}/quire")
install(FILES "${quire_generated}/quire.1" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES "${quire_generated}/quire"
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES "${PROJECT_SOURCE_DIR}/configs/quire.service" DESTINATION /lib/systemd/system)
install(FILES "${PROJECT_SOURCE_DIR}/configs/quire.toml" DESTINATION /etc/quire)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" RENAME copyright DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES "${PROJECT_SOURCE_DIR}/THIRD_PARTY_NOTICES.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
  DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME quire)
set(CPACK_PACKAGE_CONTACT "The Quire authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Context cache for retrieval-augmented generation")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(quire_deb "${PROJECT_SOURCE_DIR}/packaging/deb")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  "${quire_deb}/conffiles;${quire_deb}/postinst;${quire_deb}/prerm;${quire_deb}/postrm")
include(CPack)
