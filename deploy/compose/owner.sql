-- Everything in this database belongs to :owner; see roles.sh. What an extension made stays as it is.
ALTER SCHEMA public OWNER TO :"owner";
REVOKE ALL ON SCHEMA public FROM PUBLIC;
SELECT format('ALTER %s %s OWNER TO %I',
              CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END,
              pg_class.oid::regclass, :'owner')
  FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S')
   AND pg_get_userbyid(relowner) <> :'owner'
   AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid
                      AND deptype IN ('a', 'i', 'e')) \gexec
SELECT format('ALTER FUNCTION %s OWNER TO %I', pg_proc.oid::regprocedure, :'owner')
  FROM pg_proc
 WHERE pronamespace = 'public'::regnamespace AND prokind IN ('f', 'w') AND pg_get_userbyid(proowner) <> :'owner'
   AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_proc'::regclass AND objid = pg_proc.oid
                      AND deptype = 'e') \gexec
SELECT format('ALTER TYPE %s OWNER TO %I', pg_type.oid::regtype, :'owner')
  FROM pg_type
 WHERE typnamespace = 'public'::regnamespace AND typtype IN ('e', 'd') AND pg_get_userbyid(typowner) <> :'owner'
   AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_type'::regclass AND objid = pg_type.oid
                      AND deptype = 'e') \gexec
