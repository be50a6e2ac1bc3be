// A login that answers 401, as services are written with Express, and counts the guesses at each account.
const express = require('express');

const app = express();
const guesses = new Map();
app.use(express.json());
app.use(express.urlencoded({ extended: true }));
app.post('/auth/login', (request, response) => {
  // `email=a&email=b` is a list, of which the last is taken.
  const email = [request.body?.email].flat().at(-1);
  guesses.set(email, (guesses.get(email) ?? 0) + 1);
  response.sendStatus(401);
});
app.get('/guesses', (request, response) => {
  response.send(String(guesses.get(request.query.email) ?? 0));
});
app.use((error, request, response, next) => response.sendStatus(error.status ?? 500));
const server = app.listen(0, '127.0.0.1', () => {
  console.log(`listening 127.0.0.1:${server.address().port}`);
});
