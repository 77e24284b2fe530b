import { healthCard } from '../health/health.card.js';
import { ordersCard } from '../orders/orders.card.js';
import { secretsCard } from '../secrets/secrets.card.js';
import type { Card } from './card.js';

/** In the order of the page. A feature adds its own card here. */
export const cards: readonly Card[] = [ordersCard, secretsCard, healthCard];
