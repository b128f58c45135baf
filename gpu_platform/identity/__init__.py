"""Who a process is: our own small CA, short certificates with SPIFFE names, join tokens of hosts.

It knows ``domain`` and nothing else of the platform. Certificates are made and read with the library ``cryptography``.
"""
