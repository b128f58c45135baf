-- Accounts and databases; see roles.sh. Passwords are read from files, so that no list of processes shows them.
SELECT format('CREATE ROLE %I LOGIN', name) FROM unnest(ARRAY['gpu_platform', 'temporal']) AS name
 WHERE name NOT IN (SELECT rolname FROM pg_roles) \gexec
\set superuser_password `cat "$PASSWORDS/superuser"`
\set gpu_platform_password `cat "$PASSWORDS/gpu_platform"`
\set temporal_password `cat "$PASSWORDS/temporal"`
ALTER ROLE postgres PASSWORD :'superuser_password';
ALTER ROLE gpu_platform LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD :'gpu_platform_password';
ALTER ROLE temporal LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD :'temporal_password';

SELECT format('CREATE DATABASE %I', name)
  FROM unnest(ARRAY['gpu_platform', 'temporal', 'temporal_visibility']) AS name
 WHERE name NOT IN (SELECT datname FROM pg_database) \gexec
ALTER DATABASE gpu_platform OWNER TO gpu_platform;
ALTER DATABASE temporal OWNER TO temporal;
ALTER DATABASE temporal_visibility OWNER TO temporal;
REVOKE ALL ON DATABASE gpu_platform, temporal, temporal_visibility, postgres, template1 FROM PUBLIC;
\connect gpu_platform
ALTER SCHEMA public OWNER TO gpu_platform;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
\connect temporal
ALTER SCHEMA public OWNER TO temporal;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
\connect temporal_visibility
ALTER SCHEMA public OWNER TO temporal;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
