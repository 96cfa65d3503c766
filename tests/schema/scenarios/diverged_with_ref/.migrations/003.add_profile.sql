CREATE TABLE profiles (
    id INTEGER PRIMARY KEY,
    owner User_ID NOT NULL REFERENCES users (id),
    bio TEXT,
    city TEXT
);
